// The head of the page and the comparison of setups.

/** The cluster in a sentence. */
function clusterInWords(report) {
  const nodes = report.nodes.length;
  if (nodes === 0) return "No nodes";
  const products = new Map();
  for (const node of report.nodes) {
    for (const gpu of node.gpus) products.set(gpu.product, (products.get(gpu.product) ?? 0) + 1);
  }
  const gpus = [...products.values()].reduce((a, b) => a + b, 0);
  if (gpus === 0) return `${plural(nodes, "node")} without GPUs`;
  const ranked = [...products].sort((a, b) => b[1] - a[1]);
  const named = ranked
    .slice(0, 5)
    .map(([product, n]) => `${count(n)} × ${productName(product) || "unnamed"}`);
  if (ranked.length > 5) named.push(`${ranked.length - 5} other products`);
  return `${plural(nodes, "node")} with ${plural(gpus, "GPU")}: ${named.join(", ")}`;
}

function renderHead(report, seedText) {
  byId("title").textContent = report.title || "Untitled experiment";
  byId("description").textContent = report.description;
  byId("description").hidden = !report.description;
  const facts = [
    ["Duration", spanInWords(report.duration_ms)],
    ["Cluster", clusterInWords(report)],
    ["Setups", report.runs.map((run) => run.name).join(", ") || "none"],
    ["Seed", seedText],
  ];
  byId("facts").append(
    ...facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

const LESS = -1;
const MORE = 1;

/** The rows of the comparison, and which value is better: less, more, or neither (0). */
const FIGURES = [
  ["Latency of requests"],
  { key: "p50_us", name: "Median (p50)", format: latency, better: LESS, needs: "requests" },
  { key: "p99_us", name: "p99", format: latency, better: LESS, needs: "requests" },
  { key: "breaches", name: "Objective breaches", format: count, better: LESS, counted: true },
  { key: "above_ms", name: "Service time in breach", format: spanInWords, better: LESS },
  { key: "requests", name: "Requests served", format: count, better: 0 },
  { key: "requests_lost", name: "Requests lost", format: count, better: LESS, counted: true },
  ["GPUs"],
  { key: "gpus", name: "Mean number of GPUs", format: (v) => trim(v, 1), better: 0 },
  { key: "allocated", name: "Allocated", format: share, better: 0, isShare: true },
  { key: "utilised", name: "Busy", format: share, better: MORE, isShare: true },
  {
    key: "fragmented",
    name: "Stranded",
    hint: "free, but no typical request can use them",
    format: share,
    better: LESS,
    isShare: true,
  },
  {
    key: "aligned",
    name: "Aligned",
    hint: "share of the GPU pods' run time",
    format: share,
    better: MORE,
    isShare: true,
  },
  ["Pods"],
  { key: "pods", name: "Created", format: count, better: 0 },
  { key: "started", name: "Started", format: count, better: MORE, counted: true },
  { key: "moves", name: "Replicas moved", format: count, better: 0 },
  { key: "waiting", name: "Pending at the end", format: count, better: LESS, counted: true },
  { key: "rejections", name: "Rejected by kubelets", format: count, better: LESS, counted: true },
  { key: "preemptions", name: "Preempted", format: count, better: LESS, counted: true },
  {
    key: "lost",
    name: "Stopped before they were done",
    format: count,
    better: LESS,
    counted: true,
  },
  { key: "out_of_memory", name: "Out of GPU memory", format: count, better: LESS, counted: true },
  ["Work and cost"],
  { key: "batch_gpu_hours", name: "Batch GPU hours", format: count, better: MORE },
  {
    key: "fewest_gpus",
    name: "GPUs for the same work",
    hint: "fewest GPUs that do the work of the compared setup",
    format: count,
    better: LESS,
  },
  { key: "cost_microusd", name: "Cost", format: money, better: LESS },
  {
    key: "idle_microusd",
    name: "Cost of free GPUs",
    hint: "included in the cost",
    format: money,
    better: LESS,
  },
  {
    key: "microusd_per_million_requests",
    name: "Cost per million requests",
    format: money,
    better: LESS,
    needs: "requests",
  },
];

const figure = (key) => FIGURES.find((f) => f.key === key);

function valueOf(run, about) {
  if (about.needs && !number(run.summary[about.needs])) return NaN;
  return Number.isFinite(run.summary[about.key]) ? run.summary[about.key] : NaN;
}

/** The numbers of the runs with the best value; none if all are equal or neither is better. */
function bestRuns(runs, about) {
  const known = runs
    .map((run) => [run.index, valueOf(run, about)])
    .filter(([, v]) => Number.isFinite(v));
  if (about.better === 0 || known.length < 2) return new Set();
  // Values that are displayed alike count as equal.
  if (new Set(known.map(([, v]) => about.format(v))).size === 1) return new Set();
  const best = known.map(([, v]) => v).reduce((a, b) => ((b - a) * about.better > 0 ? b : a));
  return new Set(known.filter(([, v]) => about.format(v) === about.format(best)).map(([i]) => i));
}

/** The difference to the first run's value, and whether that is better (1) or worse (-1). */
function difference(value, base, about) {
  if (
    !Number.isFinite(value) ||
    !Number.isFinite(base) ||
    about.format(value) === about.format(base)
  )
    return null;
  const sign = value > base ? "+" : MINUS;
  const by = Math.abs(value - base);
  const relative = base > 0 ? (by / base) * 100 : Infinity;
  // Very large and very small percentages are less useful than the difference itself.
  const telling = relative >= 0.05 && relative <= 999;
  let text = !telling ? "" : `${sign}${trim(relative, relative < 10 ? 1 : 0)}${GAP}%`;
  let more = "";
  if (about.isShare) [text, more] = [`${sign}${FIXED[1].format(by * 100)}${GAP}points`, text];
  else if (text === "") text = `${sign}${about.format(by)}`;
  return { text, more, verdict: Math.sign((value - base) * about.better) };
}

function differenceNote(change) {
  if (!change) return null;
  const verdict = change.verdict > 0 ? "better" : change.verdict < 0 ? "worse" : "neutral";
  return h(
    "span",
    { class: `change ${verdict}` },
    change.text,
    change.more ? h("span", { class: "more" }, `, ${change.more}`) : null,
    verdict === "neutral" ? null : hiddenText(` (${verdict})`),
  );
}

const TILES = [
  "p99_us",
  "utilised",
  "breaches",
  "fewest_gpus",
  "microusd_per_million_requests",
  "batch_gpu_hours",
  "rejections",
  "cost_microusd",
];

/** The most important figures that the experiment has. */
function renderTiles(report) {
  const box = byId("tiles");
  const shown = TILES.map(figure).filter((about) =>
    report.runs.some((run) => valueOf(run, about) > 0),
  );
  box.append(...shown.slice(0, 4).map((about) => tile(report.runs, about)));
  box.hidden = shown.length === 0;
}

function tile(runs, about) {
  const best = bestRuns(runs, about);
  const values = runs.map((run) => valueOf(run, about));
  const max = Math.max(...values.filter(Number.isFinite), 0);
  const winner = runs.find((run) => best.has(run.index)) ?? runs[0];
  const change = winner.index === 0 ? null : difference(valueOf(winner, about), values[0], about);
  if (change) change.more = "";
  const names = {
    microusd_per_million_requests: "Cost per million requests",
    utilised: "GPUs busy",
    p99_us: "p99 latency",
    rejections: "Rejected by kubelets",
    batch_gpu_hours: "Batch GPU hours",
  };
  return h(
    "article",
    { class: "tile" },
    h("h3", {}, names[about.key] ?? about.name),
    h("p", { class: "figure" }, about.format(valueOf(winner, about)), " ", differenceNote(change)),
    h(
      "ul",
      { class: "tile-bars" },
      runs.slice(0, 6).map((run, i) =>
        h(
          "li",
          {
            class: best.has(run.index) ? "is-best" : null,
            style: {
              "--c": `var(${run.colour})`,
              "--part": max > 0 ? `${(Math.max(0, values[i] || 0) / max) * 100}%` : "0%",
            },
          },
          h(
            "span",
            { class: "tile-run" },
            run.name,
            best.has(run.index) ? hiddenText(" (best)") : null,
          ),
          h("span", { class: "tile-value" }, about.format(values[i])),
          h("i", {}),
        ),
      ),
    ),
  );
}

function renderComparison(report) {
  const { runs } = report;
  const head = h(
    "tr",
    {},
    columnHead("Figure"),
    runs.map((run, i) =>
      columnHead(
        [
          h("span", { class: "run-name" }, swatch(run.colour), run.name),
          i === 0 ? null : h("small", { class: "beside" }, "difference"),
        ],
        { class: "number" },
      ),
    ),
  );
  const rows = FIGURES.map((about) =>
    Array.isArray(about) ? groupRow(about[0], runs.length) : figureRow(runs, about),
  );
  const size = runs.length > 3 ? "compare many" : "compare";
  const box = tableBox("The setups side by side", head, h("tbody", {}, rows), { class: size });
  if (runs.length === 1) box.classList.add("slender");
  byId("comparison-table").append(box, goals(report), setups(runs));
}

const groupRow = (name, columns) =>
  h(
    "tr",
    { class: "group" },
    h("th", { scope: "rowgroup", colspan: columns + 1 }, h("span", {}, name)),
  );

function figureRow(runs, about) {
  const best = bestRuns(runs, about);
  const base = runs.length > 0 ? valueOf(runs[0], about) : NaN;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, about.name, about.hint ? h("small", {}, about.hint) : null),
    runs.map((run, i) => {
      const value = valueOf(run, about);
      const change = i === 0 ? null : difference(value, base, about);
      const mark = best.has(run.index)
        ? [h("span", { class: "best", "aria-hidden": "true" }, "●"), hiddenText("best: ")]
        : null;
      return h(
        "td",
        { class: best.has(run.index) ? "number is-best" : "number" },
        mark,
        about.format(value),
        i === 0 ? null : change ? differenceNote(change) : h("span", { class: "change" }),
      );
    }),
  );
}

/** What the setups should reach, compared with one of them, and what they reach. */
function goals(report) {
  const { goals: wanted, runs } = report;
  const base = runs[wanted?.against];
  if (!base) return "";
  const others = runs.filter((run) => run !== base);
  const change = (part) =>
    `${part < 0 ? MINUS : "+"}${FIXED[1].format(Math.abs(part) * 100)}${GAP}%`;
  const relative = (run, key) => {
    const before = number(base.summary[key]);
    return before > 0 ? number(run.summary[key]) / before - 1 : 0;
  };
  const rows = [];
  const add = (name, goal, cell, met) =>
    rows.push(
      h(
        "tr",
        {},
        h("th", { scope: "row" }, name),
        h("td", { class: "number" }, goal),
        others.map((run) =>
          h("td", { class: met(run) ? "number is-best" : "number" }, cell(run)),
        ),
      ),
    );
  const known = (value) => Number.isFinite(value);
  if (known(wanted.p99_reduction))
    add(
      "p99 latency",
      change(-wanted.p99_reduction),
      (run) => change(relative(run, "p99_us")),
      (run) => relative(run, "p99_us") <= -wanted.p99_reduction,
    );
  if (known(wanted.utilisation_gain))
    add(
      "GPUs busy",
      change(wanted.utilisation_gain),
      (run) => change(relative(run, "utilised")),
      (run) => relative(run, "utilised") >= wanted.utilisation_gain,
    );
  if (known(wanted.breaches))
    add(
      "Objective breaches",
      count(wanted.breaches),
      (run) => count(number(run.summary.breaches)),
      (run) => number(run.summary.breaches) <= wanted.breaches,
    );
  if (wanted.fewest_nodes)
    add(
      "GPUs for the same work",
      "",
      (run) =>
        known(run.summary.fewest_gpus)
          ? `${count(run.summary.fewest_gpus)} of ${count(base.summary.fewest_gpus)}`
          : `more than ${count(base.summary.fewest_gpus)}`,
      (run) =>
        known(run.summary.fewest_gpus) && run.summary.fewest_gpus < base.summary.fewest_gpus,
    );
  const head = h(
    "tr",
    {},
    columnHead(`Compared with ${base.name}`),
    columnHead("Goal", { class: "number" }),
    others.map((run) =>
      columnHead(h("span", { class: "run-name" }, swatch(run.colour), run.name), {
        class: "number",
      }),
    ),
  );
  const box = tableBox("Goals and what each setup reaches", head, h("tbody", {}, rows));
  box.classList.add("goals");
  return box;
}

/** Settings by name; those that differ are highlighted. */
function setups(runs) {
  const keys = [...new Set(runs.flatMap((run) => run.setup.map(([key]) => key)))];
  if (keys.length === 0) return "";
  const of = (run, key) => run.setup.find(([k]) => k === key)?.[1] ?? NONE;
  const head = h(
    "tr",
    {},
    columnHead("Setting"),
    runs.map((run) => columnHead(h("span", { class: "run-name" }, swatch(run.colour), run.name))),
  );
  const rows = keys.map((key) => {
    const differs = new Set(runs.map((run) => of(run, key))).size > 1;
    return h(
      "tr",
      { class: differs ? "differs" : "" },
      h("th", { scope: "row" }, key),
      runs.map((run) => h("td", {}, of(run, key))),
    );
  });
  return h(
    "details",
    { class: "setups", open: runs.length <= 4 },
    h("summary", {}, "Settings of the setups"),
    tableBox("Settings of each setup", head, h("tbody", {}, rows)),
  );
}
