// The report as the page uses it: defaults filled in, colours assigned, stays indexed by time.

const list = (value) => (Array.isArray(value) ? value : []);
const number = (value) => (Number.isFinite(value) ? value : 0);
const words = (value) => (typeof value === "string" ? value : "");

/** The report with defaults for missing fields. */
function readReport(text) {
  const raw = JSON.parse(text);
  return {
    title: words(raw.title),
    description: words(raw.description),
    seed: raw.seed ?? 0,
    duration_ms: Math.max(0, number(raw.duration_ms)),
    assumptions: list(raw.assumptions),
    nodes: list(raw.nodes).map((node) => ({
      ...node,
      name: words(node.name),
      pool: words(node.pool),
      zone: words(node.zone),
      numa: list(node.numa),
      gpus: list(node.gpus).map((gpu) => ({
        ...gpu,
        product: words(gpu.product),
        numa: list(gpu.numa),
        units: Math.max(1, number(gpu.units)),
      })),
    })),
    workloads: list(raw.workloads),
    goals: raw.goals ?? null,
    runs: list(raw.runs).map((run, index) => readRun(run, index)),
  };
}

function readRun(raw, index) {
  const series = raw.series ?? {};
  return {
    ...raw,
    index,
    name: words(raw.name) || `run ${index + 1}`,
    colour: `--run-${index % RUN_COLOURS}`,
    setup: list(raw.setup),
    summary: { ...raw.summary, fewest_gpus: raw.fewest?.gpus },
    series: {
      step_ms: Math.max(1, number(series.step_ms)),
      ...Object.fromEntries(SERIES.map((name) => [name, list(series[name])])),
    },
    services: list(raw.services),
    classes: list(raw.classes),
    teams: list(raw.teams),
    rejections: raw.rejections ?? {},
    stays: list(raw.stays),
    stays_left_out: number(raw.stays_left_out),
    layouts: list(raw.layouts),
    happenings: list(raw.happenings),
    waiting: list(raw.waiting),
  };
}

const RUN_COLOURS = 6;
const TEAM_COLOURS = 8;
const SERIES = [
  "gpus",
  "allocated",
  "utilised",
  "fragmented",
  "waiting",
  "rejections",
  "preemptions",
  "p99_us",
];

const CLASSES = ["interactive", "embedding", "batch", "experimentation"];

/** Alignment of a pod's CPUs and GPUs. */
const ALIGNMENTS = {
  aligned: {
    name: "aligned",
    mark: "",
    colour: "--alignment-aligned",
    text: "CPUs and GPU on the same NUMA nodes",
  },
  misaligned: {
    name: "misaligned",
    mark: "✕",
    colour: "--alignment-misaligned",
    text: "CPUs and GPU on different NUMA nodes",
  },
  floating: {
    name: "floating",
    mark: "~",
    colour: "--alignment-floating",
    text: "no pinned CPUs: the kernel may move it",
  },
  none: { name: "no GPU", mark: "", colour: "--other", text: "has no GPU" },
};

/** Kinds of events, the most serious first. */
const KINDS = {
  failure: { name: "failure", glyph: "M-4,-4L4,4M4,-4L-4,4", line: true },
  breach: { name: "objective breach", glyph: "M0,-5L5,0L0,5L-5,0Z" },
  "out-of-memory": { name: "out of memory", glyph: "M0,-5L5,4L-5,4Z" },
  preemption: { name: "preemption", glyph: "M-4,-3L4,-3L0,4Z" },
  rejection: { name: "rejection", glyph: "M-4,-1.4H4V1.4H-4Z" },
  provision: { name: "node added", glyph: "M0,-4V4M-4,0H4", line: true },
  recovery: { name: "recovery", glyph: "M-4,0A4,4 0 1 0 4,0A4,4 0 1 0 -4,0Z", line: true },
};
const kindOf = (kind) => KINDS[kind] ?? { name: kind, glyph: "M-3,-3H3V3H-3Z" };
/** Kinds that charts mark; the others are frequent and have charts of their own. */
const MARKED = ["failure", "breach", "out-of-memory", "provision", "recovery"];

/** A workload by number, with a placeholder if it is unknown. */
function workloadOf(report, number) {
  const found = report.workloads[number];
  return {
    kind: words(found?.kind),
    namespace: words(found?.namespace),
    name: words(found?.name) || `workload ${number}`,
    team: words(found?.team),
    class: words(found?.class),
  };
}

const fullName = (workload) =>
  workload.namespace ? `${workload.namespace}/${workload.name}` : workload.name;

const classColour = (name) => (CLASSES.includes(name) ? `--class-${name}` : "--other");

/** Colours of the most expensive teams. The others share one. */
function teamColours(report) {
  const cost = new Map();
  for (const workload of report.workloads) cost.set(words(workload.team), 0);
  for (const run of report.runs) {
    for (const team of run.teams) {
      cost.set(words(team.team), (cost.get(words(team.team)) ?? 0) + number(team.cost_microusd));
    }
  }
  cost.delete("");
  const ranked = [...cost].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  return new Map(ranked.slice(0, TEAM_COLOURS).map(([team], i) => [team, `--team-${i}`]));
}

/**
 * Who is where at a moment. Moving to another moment costs as much as starts and ends in between,
 * so that playing is cheap and a jump across the whole experiment still takes milliseconds.
 */
class Occupancy {
  constructor(run, nodes) {
    this.stays = run.stays;
    const known = [];
    run.stays.forEach((stay, i) => {
      if (stay.node < nodes.length && stay.to_ms > stay.from_ms) known.push(i);
    });
    const from = (i) => this.stays[i].from_ms;
    const to = (i) => this.stays[i].to_ms;
    this.starts = Uint32Array.from(known).sort((a, b) => from(a) - from(b) || a - b);
    this.ends = Uint32Array.from(known).sort((a, b) => to(a) - to(b) || a - b);
    this.startTimes = Float64Array.from(this.starts, from);
    this.endTimes = Float64Array.from(this.ends, to);
    this.byNode = nodes.map(() => new Set());
    /** Grows with every change of a node, so that drawings can be checked for being current. */
    this.version = new Uint32Array(nodes.length);
    this.at = -1;
    this.started = 0;
    this.ended = 0;
    this.count = 0;
    this.layouts = layoutsByGpu(run.layouts);
  }

  add(i) {
    const { node } = this.stays[i];
    this.byNode[node].add(i);
    this.version[node] += 1;
    this.count += 1;
  }

  remove(i) {
    const { node } = this.stays[i];
    if (!this.byNode[node].delete(i)) return;
    this.version[node] += 1;
    this.count -= 1;
  }

  /** Makes it the state at `at`: those with `from_ms` ≤ `at` < `to_ms`. */
  moveTo(at) {
    const started = upperBound(this.startTimes, at);
    const ended = upperBound(this.endTimes, at);
    for (let k = this.started; k < started; k += 1) {
      const i = this.starts[k];
      if (this.stays[i].to_ms > at) this.add(i);
    }
    for (let k = this.ended; k < ended; k += 1) this.remove(this.ends[k]);
    for (let k = started; k < this.started; k += 1) this.remove(this.starts[k]);
    for (let k = ended; k < this.ended; k += 1) {
      const i = this.ends[k];
      if (this.stays[i].from_ms <= at) this.add(i);
    }
    this.started = started;
    this.ended = ended;
    this.at = at;
  }

  /** The next or previous time at which a pod starts or ends. */
  changeAfter(at) {
    const a = this.startTimes[upperBound(this.startTimes, at)] ?? Infinity;
    const b = this.endTimes[upperBound(this.endTimes, at)] ?? Infinity;
    return Math.min(a, b);
  }

  changeBefore(at) {
    const a = this.startTimes[upperBound(this.startTimes, at - 1) - 1] ?? -Infinity;
    const b = this.endTimes[upperBound(this.endTimes, at - 1) - 1] ?? -Infinity;
    return Math.max(a, b);
  }

  /** How a GPU is divided now: slices as profile, first unit and units. */
  layout(node, gpu) {
    const changes = this.layouts.get(`${node}/${gpu}`);
    if (!changes) return [];
    let slices = [];
    for (const change of changes) {
      if (change.at_ms > this.at) break;
      slices = list(change.slices);
    }
    return slices;
  }
}

function layoutsByGpu(layouts) {
  const byGpu = new Map();
  for (const change of [...layouts].sort((a, b) => a.at_ms - b.at_ms)) {
    const key = `${change.node}/${change.gpu}`;
    if (!byGpu.has(key)) byGpu.set(key, []);
    byGpu.get(key).push(change);
  }
  return byGpu;
}

/** How many of the ascending `values` are no larger than `value`. */
function upperBound(values, value) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Where on a GPU its holders are: from 0 to 1, by units of memory where everybody has units of their
 * own, else one after the other by compute, squeezed where more is handed out than there is.
 */
function layOut(parts, units) {
  const byUnits = units > 1 && parts.every(({ part }) => number(part.units) > 0);
  if (byUnits) {
    const sorted = [...parts].sort((a, b) => a.part.first - b.part.first);
    const apart = sorted.every(
      ({ part }, i) => i === 0 || part.first >= sorted[i - 1].part.first + sorted[i - 1].part.units,
    );
    if (apart) {
      return sorted.map(({ stay, part }) => ({
        stay,
        part,
        from: part.first / units,
        to: Math.min(1, (part.first + part.units) / units),
      }));
    }
  }
  const size = ({ part }) => number(part.milli) || 1000;
  const total = Math.max(
    1000,
    parts.reduce((sum, p) => sum + size(p), 0),
  );
  let at = 0;
  return parts.map(({ stay, part }) => {
    const from = at / total;
    at += size({ part });
    return { stay, part, from, to: at / total };
  });
}

/** Steps of a series gathered into stretches of time that a chart can show. */
function gather(values, step_ms, from, to, stretch, skipZero) {
  const out = [];
  const first = Math.max(0, Math.floor(from / step_ms));
  const last = Math.min(values.length, Math.ceil(to / step_ms));
  for (let i = first; i < last; i += 1) {
    const value = values[i];
    if (!Number.isFinite(value) || (skipZero && value === 0)) continue;
    const slot = Math.floor((i * step_ms) / stretch);
    let bucket = out[out.length - 1];
    if (!bucket || bucket.slot !== slot) {
      bucket = {
        slot,
        from: slot * stretch,
        to: (slot + 1) * stretch,
        sum: 0,
        n: 0,
        min: Infinity,
        max: -Infinity,
      };
      out.push(bucket);
    }
    bucket.sum += value;
    bucket.n += 1;
    if (value < bucket.min) bucket.min = value;
    if (value > bucket.max) bucket.max = value;
  }
  for (const bucket of out) bucket.mean = bucket.sum / bucket.n;
  return out;
}
