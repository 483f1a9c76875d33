// The map: pods on nodes at a time, under one or two setups, with the clock and the search.

/** Up to this many nodes are shown as cards. */
const CARDS_MAX = 16;
/** Time to play the whole experiment at single speed. */
const PLAY_MS = 60_000;

/** State that panes share: colours and search. */
function mapModel(report) {
  const model = {
    report,
    teams: teamColours(report),
    paint: "class",
    query: "",
    nodes: report.nodes.map((_, i) => i),
    workloads: null,
  };
  model.dims = (stay) => model.workloads !== null && !model.workloads.has(stay.workload);
  return model;
}

/** Nodes whose name, pool or zone match; if there are none, workloads that do. */
function search(model, query, pool) {
  const { report } = model;
  const wanted = query.trim().toLowerCase();
  const has = (...texts) => texts.some((text) => words(text).toLowerCase().includes(wanted));
  const inPool = report.nodes
    .map((_, i) => i)
    .filter((i) => pool === "" || report.nodes[i].pool === pool);
  model.query = `${wanted}/${pool}`;
  model.workloads = null;
  model.nodes = inPool;
  if (wanted === "") return pool === "" ? "" : plural(inPool.length, "node");
  const nodes = inPool.filter((i) =>
    has(report.nodes[i].name, report.nodes[i].pool, report.nodes[i].zone),
  );
  if (nodes.length > 0) {
    model.nodes = nodes;
    return `${plural(nodes.length, "node")} found`;
  }
  const workloads = report.workloads
    .map((_, i) => i)
    .filter((i) => {
      const w = report.workloads[i];
      return has(w.name, w.namespace, w.team, w.class, `${words(w.namespace)}/${words(w.name)}`);
    });
  if (workloads.length === 0) return "Nothing found";
  model.workloads = new Set(workloads);
  return `${plural(workloads.length, "workload")} found, others are faint`;
}

/** The nodes under one setup. */
class MapPane {
  constructor(model, run) {
    this.model = model;
    this.run = run;
    this.occupancy = run.occupancy ??= new Occupancy(run, model.report.nodes);
    this.cards = new Map();
    this.counts = h("span", { class: "quiet" });
    this.body = h("div", { class: "pane-body" });
    this.element = h(
      "section",
      { class: "pane", "aria-label": `Map of ${run.name}` },
      h(
        "p",
        { class: "pane-head" },
        h("b", { class: "run-name" }, swatch(run.colour), run.name),
        this.counts,
      ),
      this.body,
    );
    this.grid = new NodeGrid(model, this.occupancy, (n) => this.choose(n));
    this.detail = h("aside", {
      class: "detail",
      "aria-live": "polite",
      "aria-label": "The selected node",
    });
    this.width = 0;
    onWidth(this.body, (width) => {
      this.width = width;
      this.arrange();
    });
    watchParts(this.element, model);
  }

  dense() {
    return this.model.nodes.length > CARDS_MAX;
  }

  card(n) {
    if (!this.cards.has(n)) this.cards.set(n, new NodeCard(this.model, this.occupancy, n));
    return this.cards.get(n);
  }

  /** Shows the nodes that match the search. */
  arrange() {
    if (this.width === 0) return;
    const { nodes } = this.model;
    if (nodes.length === 0) this.body.replaceChildren(h("p", { class: "quiet" }, "No nodes."));
    else if (this.dense()) this.arrangeGrid(nodes);
    else
      this.body.replaceChildren(
        h(
          "div",
          { class: "cards" },
          nodes.map((n) => this.card(n).element),
        ),
      );
    this.refresh();
  }

  arrangeGrid(nodes) {
    const zoom = (by, label, text) =>
      h("button", { type: "button", "aria-label": label, onclick: () => this.grid.zoom(by) }, text);
    this.body.replaceChildren(
      h(
        "div",
        { class: "controls zoom" },
        zoom(-1, "Smaller tiles", MINUS),
        zoom(1, "Larger tiles", "+"),
        h(
          "span",
          { class: "quiet" },
          "Select a node for details. A tile has a cell per GPU and a row per socket; the strip below shows pinned CPUs.",
        ),
      ),
      this.grid.element,
      this.detail,
    );
    if (this.grid.chosen === null || !nodes.includes(this.grid.chosen)) this.choose(null);
    this.grid.show(nodes, this.width);
  }

  choose(n) {
    this.grid.chosen = n;
    this.detail.hidden = n === null;
    this.detail.replaceChildren(
      ...(n === null
        ? []
        : [
            this.card(n).element,
            h(
              "button",
              {
                type: "button",
                class: "close",
                onclick: () => {
                  this.choose(null);
                  this.grid.redraw();
                  this.grid.canvas.focus();
                },
              },
              "Close",
            ),
          ]),
    );
    this.refresh();
  }

  /** Redraws for the current time. */
  refresh() {
    this.occupancy.moveTo(shared.now.get());
    if (this.dense()) {
      this.grid.redraw();
      if (this.grid.chosen !== null) this.card(this.grid.chosen).refresh();
    } else for (const n of this.model.nodes) this.card(n).refresh();
    letTabIn(this.element);
    this.counts.textContent = `${plural(this.occupancy.count, "pod")}${this.run.stays_left_out > 0 ? `; ${count(this.run.stays_left_out)} short stays are not recorded` : ""}`;
  }
}

/** Set by the map: shows a run by number. */
let chooseRun = () => {};

function renderMap(report) {
  if (report.runs.length === 0 || report.nodes.length === 0) return absent("map");
  const model = mapModel(report);
  const panes = report.runs.map(() => null);
  const paneOf = (i) => (panes[i] ??= new MapPane(model, report.runs[i]));
  const last = report.runs.length - 1;
  // For few nodes, the first setup is shown beside the last one.
  const beside = last > 0 && report.nodes.length <= CARDS_MAX && innerWidth >= 900;
  let [first, second] = beside ? [0, last] : [last, -1];
  const shown = () =>
    [first, second].filter((i, k, all) => i >= 0 && all.indexOf(i) === k).map(paneOf);
  const legend = byId("map-legend");
  const refresh = onceAFrame(() => {
    for (const pane of shown()) pane.refresh();
    renderLegend(model, shown(), legend);
  });
  const arrange = () => {
    byId("map-panes").replaceChildren(...shown().map((pane) => pane.element));
    byId("map-panes").classList.toggle("two", shown().length > 1);
    for (const pane of shown()) pane.arrange();
    refresh();
  };
  const options = report.runs.map((run) => [String(run.index), run.name]);
  const firstSelect = select("Setup", options, (value) => {
    first = Number(value);
    arrange();
  });
  const secondSelect = select("beside", [["-1", "none"], ...options], (value) => {
    second = Number(value);
    arrange();
  });
  firstSelect.set(String(first));
  secondSelect.set(String(second));
  chooseRun = (i) => {
    if (first === i || second === i) return;
    first = i;
    firstSelect.set(String(i));
    arrange();
  };
  renderMapControls(model, arrange, refresh, [
    firstSelect.element,
    report.runs.length > 1 ? secondSelect.element : null,
  ]);
  renderClock(
    report,
    () => shown()[0]?.occupancy,
    () => shown()[0]?.run,
  );
  shared.now.on(refresh);
  palette.changed.on(refresh);
  arrange();
}

function renderMapControls(model, arrange, refresh, runSelects) {
  const paint = h(
    "fieldset",
    { class: "segmented" },
    h("legend", {}, "Colour by"),
    segmented(
      "paint",
      Object.entries(PAINTS).map(([key, { name }]) => [key, name]),
      "class",
      (key) => {
        model.paint = key;
        refresh();
      },
    ),
  );
  const found = h("span", { class: "quiet", role: "status" });
  const pools = [...new Set(model.report.nodes.map((node) => node.pool))].filter(Boolean);
  const look = () => {
    found.textContent = search(model, input.value, poolSelect.value());
    arrange();
  };
  const poolSelect = select(
    "Pool",
    [["", "All pools"], ...pools.map((pool) => [pool, pool])],
    look,
  );
  let typing = 0;
  const input = h("input", {
    type: "search",
    placeholder: "node, zone, workload, team",
    oninput: () => {
      clearTimeout(typing);
      typing = setTimeout(look, 150);
    },
  });
  byId("map-controls").append(
    ...runSelects.filter(Boolean),
    paint,
    ...(pools.length > 1 ? [poolSelect.element] : []),
    h("label", { class: "field grow" }, h("span", {}, "Find"), input),
    found,
  );
}

const alignmentMark = (mark) => h("b", { class: "alignment-mark" }, mark);

/** The legend, with the current number of pods. */
function renderLegend(model, panes, box) {
  const counts = new Map();
  const alignments = new Map();
  for (const pane of panes) {
    pane.occupancy.byNode.forEach((stays) => {
      for (const i of stays) {
        const stay = pane.occupancy.stays[i];
        const workload = workloadOf(model.report, stay.workload);
        const label = PAINTS[model.paint].label(model, workload, stay);
        const entry = counts.get(label) ?? {
          colour: PAINTS[model.paint].of(model, workload, stay),
          n: 0,
        };
        entry.n += 1;
        counts.set(label, entry);
        alignments.set(alignmentOf(stay), (alignments.get(alignmentOf(stay)) ?? 0) + 1);
      }
    });
  }
  const byAlignment = model.paint === "alignment";
  const marks = byAlignment ? [] : [ALIGNMENTS.misaligned, ALIGNMENTS.floating];
  const markOf = (label) => byAlignment && Object.values(ALIGNMENTS).find((alignment) => alignment.name === label)?.mark;
  const order = (label) => (CLASSES.includes(label) ? CLASSES.indexOf(label) : 9);
  const entries = [...counts].sort((a, b) => order(a[0]) - order(b[0]) || (a[0] < b[0] ? -1 : 1));
  box.replaceChildren(
    ...entries.map(([label, { colour, n }]) =>
      h(
        "span",
        {},
        swatch(colour),
        markOf(label) ? alignmentMark(markOf(label)) : null,
        label,
        h("small", {}, count(n)),
      ),
    ),
    h("span", {}, swatch("--free"), "free"),
    ...marks.map((alignment) =>
      h(
        "span",
        { title: alignment.text },
        alignmentMark(alignment.mark),
        alignment.name,
        h("small", {}, count(alignments.get(alignment) ?? 0)),
      ),
    ),
  );
}

/** The slider with its steps, and playing. */
function renderClock(report, occupancy, run) {
  const end = report.duration_ms;
  const slider = byId("moment");
  const play = byId("play");
  slider.max = String(end);
  slider.step = String(Math.max(1, Math.min(timeStep(end / 1500), HOUR)));
  slider.addEventListener("input", () => shared.now.set(Number(slider.value)));
  const go = (at) => shared.now.set(Math.max(0, Math.min(end, at)));
  byId("earlier").addEventListener("click", () =>
    go(occupancy()?.changeBefore(shared.now.get()) ?? 0),
  );
  byId("later").addEventListener("click", () =>
    go(occupancy()?.changeAfter(shared.now.get()) ?? end),
  );
  shared.now.on((at) => {
    slider.value = String(at);
    slider.setAttribute("aria-valuetext", moment(at));
    byId("moment-text").textContent = moment(at);
  });
  const paces = [0.05, 0.2, 1, 4];
  byId("speed").append(
    ...paces.map((pace) =>
      h(
        "option",
        { value: pace, selected: pace === 1 },
        `${span(Math.max(1, (end / PLAY_MS) * SECOND * pace))} a second`,
      ),
    ),
  );
  let playing = false;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const show = () => {
    play.textContent = playing ? "Pause" : "Play";
    play.setAttribute("aria-pressed", String(playing));
  };
  let last = 0;
  const frame = (time) => {
    if (!playing) return;
    const passed = last === 0 ? 0 : time - last;
    // With reduced motion: one step per second.
    if (last === 0 || !still.matches || passed >= 1000) {
      last = time;
      const at = shared.now.get() + ((passed * end) / PLAY_MS) * Number(byId("speed").value);
      shared.now.set(Math.min(end, Math.round(at)));
      if (at >= end) playing = false;
    }
    show();
    requestAnimationFrame(frame);
  };
  play.addEventListener("click", () => {
    playing = !playing;
    last = 0;
    if (playing && shared.now.get() >= end) shared.now.set(0);
    show();
    requestAnimationFrame(frame);
  });
  renderScrubber(report, run);
}

/** Allocated GPUs over time, above the slider. */
function renderScrubber(report, run) {
  const svg = s("svg", { class: "scrubber", "aria-hidden": "true", preserveAspectRatio: "none" });
  byId("scrubber").append(svg);
  const draw = () => {
    const { series } = run();
    const [wide, high] = [600, 34];
    const points = gather(
      series.allocated,
      series.step_ms,
      0,
      report.duration_ms,
      Math.max(series.step_ms, report.duration_ms / 200),
    );
    const max = points.reduce(
      (most, p) => Math.max(most, p.max),
      series.gpus.reduce((a, b) => Math.max(a, b), 1),
    );
    svg.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    const x = (at) => ((at / report.duration_ms) * wide).toFixed(1);
    const d = points
      .map((p) => `L${x((p.from + p.to) / 2)},${(high - (p.mean / max) * high).toFixed(1)}`)
      .join("");
    const shape =
      points.length > 1
        ? `M${x(points[0].from)},${high}${d}L${x(Math.min(report.duration_ms, points[points.length - 1].to))},${high}Z`
        : "";
    svg.replaceChildren(
      s("path", { class: "area", style: { "--c": `var(${run().colour})` }, d: shape }),
    );
  };
  draw();
  byId("map-controls").addEventListener("change", draw);
}
