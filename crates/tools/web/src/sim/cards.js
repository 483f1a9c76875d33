// A node as a card with its sockets, NUMA nodes, CPUs, GPUs, slices and pods: for small clusters, and for
// the selected node of large ones.

/** What the colours of pods stand for. */
const PAINTS = {
  class: {
    name: "Class",
    of: (model, w) => classColour(w.class),
    label: (model, w) => w.class || "no class",
  },
  team: {
    name: "Team",
    of: (model, w) => model.teams.get(w.team) ?? "--other",
    label: (model, w) => (model.teams.has(w.team) ? w.team : "other teams"),
  },
  alignment: {
    name: "Alignment",
    of: (model, w, stay) => alignmentOf(stay).colour,
    label: (model, w, stay) => alignmentOf(stay).name,
  },
};

/** Minimum part of a GPU that shows a name. */
const NAMED_FROM = 0.24;

const alignmentOf = (stay) => ALIGNMENTS[stay.alignment] ?? ALIGNMENTS.none;
const podName = (workload, stay) => `${workload.name}-${stay.pod}`;

/** The pods on a node's GPUs and NUMA nodes, from the stays on it. */
function holdings(node, stays) {
  const gpus = node.gpus.map(() => []);
  const cpus = node.numa.map(() => []);
  const unpinned = [];
  for (const stay of stays) {
    for (const part of list(stay.gpus)) gpus[part.gpu]?.push({ stay, part });
    const pinned = list(stay.cpus);
    pinned.forEach((n, i) => n > 0 && cpus[i]?.push({ stay, n }));
    if (pinned.every((n) => n === 0) && list(stay.gpus).length === 0) unpinned.push(stay);
  }
  return { gpus, cpus, unpinned };
}

/** Allocated GPUs. */
function heldGpus(node, gpus) {
  return gpus.reduce(
    (sum, parts, i) =>
      sum +
      Math.min(
        1,
        layOut(parts, node.gpus[i].units).reduce((a, p) => a + p.to - p.from, 0),
      ),
    0,
  );
}

/** The tooltip of a pod. */
function podInWords(model, stay) {
  const workload = workloadOf(model.report, stay.workload);
  const alignment = alignmentOf(stay);
  const node = model.report.nodes[stay.node];
  const parts = list(stay.gpus).map((part) => {
    const gpu = node.gpus[part.gpu];
    const some =
      gpu && gpu.units > 1 && part.units < gpu.units
        ? `, units ${part.first} to ${part.first + part.units - 1} of ${gpu.units}`
        : "";
    const compute =
      part.milli > 0 && part.milli < 1000 ? `, ${trim(part.milli / 10, 1)}${GAP}% of compute` : "";
    return `GPU ${part.gpu}${some}${compute}`;
  });
  const cpus = list(stay.cpus)
    .map((n, i) => (n > 0 ? `${n} on NUMA ${i}` : ""))
    .filter(Boolean);
  const rows = [
    ["Workload", `${workload.kind} ${fullName(workload)}`.trim()],
    ["Class", workload.class || "none"],
    ["Team", workload.team || "none"],
    ["Node", node.name],
    ...(parts.length > 0
      ? [
          [
            "GPUs",
            parts.length > 4
              ? `${parts.length} GPUs: ${list(stay.gpus)
                  .map((p) => p.gpu)
                  .join(", ")}`
              : h(
                  "span",
                  {},
                  parts.map((p) => h("span", { class: "row" }, p)),
                ),
          ],
        ]
      : []),
    ["CPUs", cpus.join(", ") || "not pinned"],
    ["On the node", `${moment(stay.from_ms)} to ${moment(stay.to_ms)}`],
    ["", `for ${span(stay.to_ms - stay.from_ms)}`],
  ];
  if (alignment !== ALIGNMENTS.none)
    rows.push([
      "Alignment",
      h(
        "span",
        { class: alignment === ALIGNMENTS.aligned ? "" : "bad" },
        alignment.mark ? `${alignment.mark} ` : "",
        `${alignment.name}: ${alignment.text}`,
      ),
    ]);
  return [h("p", { class: "tip-head" }, podName(workload, stay)), pairs(rows)];
}

/** Sockets with their NUMA nodes, and for each of those the GPUs that are attached to it. */
function anatomy(node) {
  const groups = new Map();
  node.numa.forEach((numa, i) => {
    const key = String(i);
    groups.set(key, { name: `NUMA ${i}`, about: `socket ${numa.socket}`, numa: [i], gpus: [] });
  });
  node.gpus.forEach((gpu, g) => {
    const key = gpu.numa.join("+");
    if (!groups.has(key)) {
      const known = gpu.numa.length > 0;
      groups.set(key, {
        name: known ? `NUMA ${gpu.numa.join(" + ")}` : "GPUs",
        about: known ? "" : "NUMA node unknown",
        numa: [],
        gpus: [],
      });
    }
    groups.get(key).gpus.push(g);
  });
  return [...groups.values()];
}

/** A card. `refresh()` redraws it for the current time if something changed. */
class NodeCard {
  constructor(model, occupancy, index) {
    this.model = model;
    this.occupancy = occupancy;
    this.index = index;
    this.node = model.report.nodes[index];
    const { node } = this;
    this.held = h("span", { class: "held" });
    this.extra = h("p", { class: "unpinned" });
    this.bars = { gpus: [], cpus: [], cpuText: [] };
    const products = [...new Set(node.gpus.map((gpu) => productName(gpu.product)))].join(", ");
    const about = [node.pool, node.zone, products].filter(Boolean).join(" · ");
    this.element = h(
      "article",
      { class: "node" },
      h("header", {}, h("h3", {}, node.name), this.held, h("p", {}, about)),
      h(
        "div",
        { class: "numas" },
        anatomy(node).map((group) => this.group(group)),
      ),
      this.extra,
    );
    this.drawn = "";
  }

  group({ name, about, numa, gpus }) {
    const cpuBars = numa.map((i) => {
      this.bars.cpus[i] = h("div", { class: "track cpu" });
      this.bars.cpuText[i] = h("span", { class: "quiet" });
      return [h("div", { class: "row-name" }, "CPU"), this.bars.cpus[i]];
    });
    const gpuBars = gpus.map((g) => {
      this.bars.gpus[g] = h("div", { class: "track gpu" });
      return [h("div", { class: "row-name" }, `GPU ${g}`), this.bars.gpus[g]];
    });
    return h(
      "div",
      { class: "numa" },
      h(
        "p",
        { class: "numa-name" },
        h("b", {}, name),
        h("span", {}, about),
        numa.map((i) => this.bars.cpuText[i]),
      ),
      h("div", { class: "rows" }, cpuBars, gpuBars),
    );
  }

  refresh() {
    const { occupancy, index, node, model } = this;
    const layouts = node.gpus.map((_, g) => occupancy.layout(index, g));
    const signature = `${occupancy.version[index]} ${model.paint} ${model.query} ${layouts.map((l) => l.join()).join(";")}`;
    if (signature === this.drawn) return;
    this.drawn = signature;
    const had = this.element.contains(document.activeElement)
      ? document.activeElement.dataset.stay
      : null;
    const stays = [...occupancy.byNode[index]].sort((a, b) => a - b).map((i) => occupancy.stays[i]);
    const held = holdings(node, stays);
    node.gpus.forEach((gpu, g) => {
      const slices = layouts[g].map(([profile, first, units]) =>
        this.slice(profile, first / gpu.units, units / gpu.units),
      );
      const parts = layOut(held.gpus[g], gpu.units).map((p) => this.part(p.stay, p.from, p.to));
      this.bars.gpus[g].replaceChildren(...slices, ...parts);
    });
    node.numa.forEach((numa, i) => this.cpuBar(numa, i, held.cpus[i]));
    this.held.textContent =
      node.gpus.length > 0
        ? `${trim(heldGpus(node, held.gpus), 1)} of ${plural(node.gpus.length, "GPU")} allocated`
        : "no GPUs";
    this.showUnpinned(held.unpinned);
    if (had !== null)
      this.element.querySelector(`[data-stay="${had}"]`)?.focus({ preventScroll: true });
  }

  cpuBar(numa, i, holders) {
    const pinned = holders.reduce((sum, { n }) => sum + n, 0);
    const all = Math.max(numa.cpus, pinned, 1);
    let at = 0;
    this.bars.cpus[i].replaceChildren(
      ...holders.map(({ stay, n }) => {
        const from = at / all;
        at += n;
        return this.part(stay, from, at / all);
      }),
    );
    this.bars.cpuText[i].textContent =
      `${pinned} of ${numa.cpus} CPUs pinned · ${bytes(numa.memory_bytes)}`;
  }

  slice(profile, from, size) {
    const label = size >= NAMED_FROM ? h("span", {}, words(profile)) : null;
    return h(
      "div",
      {
        class: "slice",
        title: words(profile),
        style: { left: `${from * 100}%`, width: `${size * 100}%` },
      },
      label,
    );
  }

  part(stay, from, to) {
    const { model } = this;
    const workload = workloadOf(model.report, stay.workload);
    const colour = PAINTS[model.paint].of(model, workload, stay);
    const alignment = alignmentOf(stay);
    const button = h(
      "button",
      {
        type: "button",
        tabindex: "-1",
        class: `part ${alignment.name}${to - from < NAMED_FROM ? " slim" : ""}${model.dims(stay) ? " dim" : ""}`,
        "data-stay": `${stay.workload}.${stay.pod}`,
        "aria-label": `${podName(workload, stay)}, ${workload.class}, ${alignment.name}`,
        style: {
          left: `${from * 100}%`,
          width: `${(to - from) * 100}%`,
          "--fill": `var(${colour})`,
          "--on": `var(${colour}-on)`,
        },
      },
      alignment.mark ? h("b", {}, alignment.mark) : null,
      h("span", {}, podName(workload, stay)),
    );
    button.stay = stay;
    return button;
  }

  showUnpinned(stays) {
    const shown = stays.slice(0, 6);
    this.extra.hidden = stays.length === 0;
    this.extra.replaceChildren(
      "Without GPUs and pinned CPUs: ",
      ...shown.flatMap((stay, i) => [
        i > 0 ? ", " : "",
        podName(workloadOf(this.model.report, stay.workload), stay),
      ]),
      stays.length > shown.length ? ` and ${stays.length - shown.length} more` : "",
    );
  }
}

/** Tooltips, highlighting and arrow keys for the pods of all cards within an element. */
function watchParts(root, model) {
  const partOf = (event) => event.target.closest?.(".part");
  const light = (stay) => {
    for (const part of root.querySelectorAll(".part"))
      part.classList.toggle("lit", stay !== null && part.stay === stay);
  };
  root.addEventListener("pointermove", (event) => {
    const part = partOf(event);
    if (!part) return;
    light(part.stay);
    tip.at(event.clientX, event.clientY, ...podInWords(model, part.stay));
  });
  const leave = () => {
    light(null);
    tip.hide();
  };
  root.addEventListener("pointerout", (event) => partOf(event) && leave());
  root.addEventListener("focusin", (event) => {
    const part = partOf(event);
    if (!part) return;
    light(part.stay);
    if (part.matches(":focus-visible")) tip.beside(part, ...podInWords(model, part.stay));
  });
  root.addEventListener("focusout", leave);
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hide();
    const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const part = partOf(event);
    if (!part || !(event.key in moves || event.key === "Home" || event.key === "End")) return;
    event.preventDefault();
    const all = [...root.querySelectorAll(".part")];
    const at = all.indexOf(part);
    const next =
      event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : at + moves[event.key];
    all[Math.max(0, Math.min(all.length - 1, next))].focus();
  });
}

/** Tab reaches one pod; arrow keys move to the others. */
function letTabIn(root) {
  if (!root.querySelector('.part[tabindex="0"]'))
    root.querySelector(".part")?.setAttribute("tabindex", "0");
}
