// Many nodes at once: a tile per node on a canvas, a cell per GPU, grouped by pool. What a tile shows
// in little, the card of the node that is chosen shows in full.

const CELLS = [7, 10, 14, 20, 30];
const GROUP_HEAD = 26;

/** GPUs of a node in rows, one row per socket where there are few sockets. */
function gpuRows(node) {
  const rows = new Map();
  node.gpus.forEach((gpu, g) => {
    const socket = number(node.numa[gpu.numa[0]]?.socket);
    if (!rows.has(socket)) rows.set(socket, []);
    rows.get(socket).push(g);
  });
  const bySocket = [...rows].sort((a, b) => a[0] - b[0]).map(([, gpus]) => gpus);
  if (bySocket.length <= 2) return bySocket;
  const all = bySocket.flat();
  const wide = Math.ceil(all.length / 2);
  return [all.slice(0, wide), all.slice(wide)];
}

class NodeGrid {
  constructor(model, occupancy, choose) {
    this.model = model;
    this.occupancy = occupancy;
    this.choose = choose;
    this.chosen = null;
    this.over = null;
    this.cell = null;
    this.canvas = h("canvas", { class: "grid", tabindex: "0", role: "application" });
    this.element = h("div", { class: "grid-box" }, this.canvas);
    this.rows = model.report.nodes.map(gpuRows);
    this.cpus = model.report.nodes.map((node) =>
      node.numa.reduce((sum, numa) => sum + number(numa.cpus), 0),
    );
    this.redraw = onceAFrame(() => this.draw());
    this.listen();
  }

  show(nodes, width) {
    this.nodes = nodes;
    this.width = width;
    const cells = this.cell === null ? [...CELLS].reverse() : [this.cell];
    for (const cell of cells) {
      this.layOutTiles(cell);
      if (this.height <= 760) break;
    }
    this.canvas.setAttribute(
      "aria-label",
      `${plural(nodes.length, "node")}, one tile each. Arrow keys choose a node, whose card then shows what it holds.`,
    );
    this.redraw();
  }

  zoom(by) {
    const at = CELLS.indexOf(this.size) + by;
    this.cell = CELLS[Math.max(0, Math.min(CELLS.length - 1, at))];
    this.show(this.nodes, this.width);
  }

  layOutTiles(cell) {
    this.size = cell;
    this.named = cell >= 20;
    const strip = Math.max(2, Math.round(cell / 4));
    const gap = Math.max(4, Math.round(cell / 2));
    const { nodes: all } = this.model.report;
    const pools = new Map();
    for (const n of this.nodes) {
      const key = all[n].pool || "no pool";
      if (!pools.has(key)) pools.set(key, []);
      pools.get(key).push(n);
    }
    this.tiles = [];
    this.heads = [];
    let y = 0;
    for (const [pool, members] of pools) {
      const gpus = members.reduce((sum, n) => sum + all[n].gpus.length, 0);
      this.heads.push({
        text: pool,
        about: `${plural(members.length, "node")}, ${plural(gpus, "GPU")}`,
        y: y + 15,
      });
      y += GROUP_HEAD;
      let x = 0;
      let tallest = 0;
      for (const n of members) {
        const columns = Math.max(1, ...this.rows[n].map((row) => row.length));
        const w = Math.max(columns * (cell + 1) - 1, this.named ? 64 : 0) + 6;
        const tall =
          Math.max(1, this.rows[n].length) * (cell + 1) + strip + 6 + (this.named ? 14 : 0);
        if (x > 0 && x + w > this.width) {
          x = 0;
          y += tallest + gap;
          tallest = 0;
        }
        this.tiles.push({ n, x, y, w, h: tall });
        x += w + gap;
        tallest = Math.max(tallest, tall);
      }
      y += tallest + gap + 8;
    }
    this.strip = strip;
    this.height = Math.max(40, y);
  }

  draw() {
    if (!this.tiles) return;
    const scale = Math.min(2, devicePixelRatio || 1);
    const { canvas, width, height } = this;
    if (canvas.width !== width * scale || canvas.height !== Math.ceil(height * scale)) {
      canvas.width = width * scale;
      canvas.height = Math.ceil(height * scale);
      canvas.style.height = `${height}px`;
      canvas.style.width = `${width}px`;
    }
    const g = canvas.getContext("2d");
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    const font = getComputedStyle(canvas).fontFamily;
    g.textBaseline = "alphabetic";
    for (const head of this.heads) {
      g.font = `600 13px ${font}`;
      g.fillStyle = palette.get("--ink");
      g.fillText(head.text, 0, head.y);
      const wide = g.measureText(head.text).width;
      g.font = `12px ${font}`;
      g.fillStyle = palette.get("--ink-3");
      g.fillText(head.about, wide + 10, head.y);
    }
    g.font = `10px ${font}`;
    for (const tile of this.tiles) this.tile(g, tile);
    for (const tile of this.tiles) {
      if (tile.n !== this.chosen && tile.n !== this.over) continue;
      g.strokeStyle = palette.get(tile.n === this.chosen ? "--accent" : "--ink-3");
      g.lineWidth = 2;
      g.strokeRect(tile.x - 1, tile.y - 1, tile.w + 2, tile.h + 2);
    }
  }

  tile(g, { n, x, y, w, h: tall }) {
    const { model, occupancy, size } = this;
    const node = model.report.nodes[n];
    g.fillStyle = palette.get("--tile");
    g.fillRect(x, y, w, tall);
    const stays = [];
    for (const i of occupancy.byNode[n]) stays.push(occupancy.stays[i]);
    const held = holdings(node, stays);
    let top = y + 3;
    if (this.named) {
      g.fillStyle = palette.get("--ink-2");
      g.fillText(clip(g, node.name, w - 6), x + 3, top + 9);
      top += 14;
    }
    for (const row of this.rows[n]) {
      row.forEach((gpu, k) =>
        this.gpuCell(g, node.gpus[gpu], held.gpus[gpu], x + 3 + k * (size + 1), top),
      );
      top += size + 1;
    }
    if (this.rows[n].length === 0) top += size + 1;
    const pinned = held.cpus.reduce((sum, cpus) => sum + cpus.reduce((a, { n: c }) => a + c, 0), 0);
    g.fillStyle = palette.get("--free");
    g.fillRect(x + 3, top + 1, w - 6, this.strip);
    g.fillStyle = palette.get("--ink-3");
    g.fillRect(x + 3, top + 1, (w - 6) * Math.min(1, pinned / (this.cpus[n] || 1)), this.strip);
  }

  gpuCell(g, gpu, parts, x, y) {
    const { model, size } = this;
    g.fillStyle = palette.get("--free");
    g.fillRect(x, y, size, size);
    for (const { stay, from, to } of layOut(parts, gpu.units)) {
      const workload =
        model.report.workloads[stay.workload] ?? workloadOf(model.report, stay.workload);
      const left = x + from * size;
      const wide = Math.max(1, (to - from) * size - (to < 1 ? 0.5 : 0));
      g.globalAlpha = model.dims(stay) ? 0.15 : 1;
      const colour = PAINTS[model.paint].of(model, workload, stay);
      g.fillStyle = palette.get(colour);
      g.fillRect(left, y, wide, size);
      if (stay.alignment === "misaligned" || stay.alignment === "floating")
        this.mark(g, stay.alignment, palette.get(`${colour}-on`), left, y, wide);
      g.globalAlpha = 1;
    }
  }

  /** Not by colour alone: a cross for what is misaligned, a dot for what floats. */
  mark(g, alignment, colour, x, y, wide) {
    const { size } = this;
    const r = Math.max(1.5, Math.min(wide, size) / 2 - 1.5);
    const [cx, cy] = [x + wide / 2, y + size / 2];
    g.strokeStyle = colour;
    g.lineWidth = Math.max(1, size / 9);
    g.beginPath();
    if (alignment === "misaligned") {
      g.moveTo(cx - r, cy - r);
      g.lineTo(cx + r, cy + r);
      g.moveTo(cx + r, cy - r);
      g.lineTo(cx - r, cy + r);
      g.stroke();
    } else {
      g.fillStyle = colour;
      g.arc(cx, cy, Math.max(1, r / 2.2), 0, 7);
      g.fill();
    }
  }

  /** The tile at a point of the canvas, and the pod there if the point is on one. */
  hit(x, y) {
    const tile = this.tiles?.find((t) => x >= t.x && x < t.x + t.w && y >= t.y && y < t.y + t.h);
    if (!tile) return null;
    const node = this.model.report.nodes[tile.n];
    const top = tile.y + 3 + (this.named ? 14 : 0);
    const gpu =
      this.rows[tile.n][Math.floor((y - top) / (this.size + 1))]?.[
        Math.floor((x - tile.x - 3) / (this.size + 1))
      ];
    if (gpu === undefined || x < tile.x + 3 || y < top) return { tile, node };
    const stays = [...this.occupancy.byNode[tile.n]].map((i) => this.occupancy.stays[i]);
    const within = ((x - tile.x - 3) % (this.size + 1)) / this.size;
    const part = layOut(holdings(node, stays).gpus[gpu], node.gpus[gpu].units).find(
      (p) => within >= p.from && within < p.to,
    );
    return { tile, node, gpu, stay: part?.stay };
  }

  listen() {
    const { canvas } = this;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return this.hit(event.clientX - box.left, event.clientY - box.top);
    };
    canvas.addEventListener("pointermove", (event) => {
      const hit = at(event);
      const over = hit ? hit.tile.n : null;
      if (over !== this.over) {
        this.over = over;
        this.redraw();
      }
      if (!hit) tip.hide();
      else if (hit.stay) tip.at(event.clientX, event.clientY, ...podInWords(this.model, hit.stay));
      else
        tip.at(
          event.clientX,
          event.clientY,
          h("p", { class: "tip-head" }, hit.node.name),
          h("p", {}, this.tileInWords(hit)),
        );
    });
    canvas.addEventListener("pointerleave", () => {
      this.over = null;
      tip.hide();
      this.redraw();
    });
    canvas.addEventListener("click", (event) => {
      const hit = at(event);
      if (hit) this.select(hit.tile.n);
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  tileInWords({ node, gpu }) {
    if (gpu !== undefined) return `GPU ${gpu}, ${productName(node.gpus[gpu].product)}: free`;
    return [node.pool, node.zone, plural(node.gpus.length, "GPU")].filter(Boolean).join(" · ");
  }

  key(event) {
    if (!this.tiles || this.tiles.length === 0) return;
    const at = this.tiles.findIndex((tile) => tile.n === this.chosen);
    const here = this.tiles[Math.max(0, at)];
    const vertical = (sign) => {
      const rows = this.tiles.filter((tile) => (tile.y - here.y) * sign > 0);
      rows.sort((a, b) => (a.y - b.y) * sign || Math.abs(a.x - here.x) - Math.abs(b.x - here.x));
      return rows[0] ?? here;
    };
    const next = {
      ArrowRight: () => this.tiles[Math.min(this.tiles.length - 1, at + 1)],
      ArrowLeft: () => this.tiles[Math.max(0, at - 1)],
      ArrowDown: () => vertical(1),
      ArrowUp: () => vertical(-1),
      Home: () => this.tiles[0],
      End: () => this.tiles[this.tiles.length - 1],
    }[event.key];
    if (!next) return;
    event.preventDefault();
    this.select(next().n);
  }

  select(n) {
    this.chosen = n;
    this.redraw();
    this.choose(n);
  }
}

/** As much of the text as fits. */
function clip(g, text, wide) {
  if (g.measureText(text).width <= wide) return text;
  let keep = text.length;
  while (keep > 1 && g.measureText(`${text.slice(0, keep)}…`).width > wide) keep -= 1;
  return `${text.slice(0, keep)}…`;
}
