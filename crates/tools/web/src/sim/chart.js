// Charts over time: one line or one set of columns per run. All charts share the time window and the
// cross-hair.

/** What all charts and the map share. */
const shared = {
  /** The moment the map shows. */
  now: signal(0),
  /** The moment pointed at in some chart, or null. */
  pointed: signal(null),
  /** The stretch of time that charts show. */
  view: signal({ from: 0, to: 1 }),
  /** Runs that are not drawn, by number. */
  hidden: signal(new Set()),
};

const MARGIN = { left: 52, right: 14, top: 10, bottom: 24 };
const RAIL = 16;

class TimeChart {
  /**
   * `spec`: `title`, `unit`, `runs`, `values(run)`, `tick`, `format`, and, where wanted, `columns`
   * (sums instead of lines), `gaps` (0 means nothing was measured), `limits()` (dashed lines with
   * labels), `ceiling(run)` (a series of what there is at most), `log` (if the values ask for it).
   */
  constructor(report, spec) {
    this.report = report;
    this.spec = spec;
    this.height = 232;
    this.svg = s("svg", { class: "plot", role: "img", tabindex: "0" });
    this.note = h("p", { class: "note" });
    this.figure = h(
      "figure",
      { class: "chart" },
      h(
        "figcaption",
        {},
        h("h3", {}, spec.title, spec.unit ? h("small", {}, ` ${spec.unit}`) : null),
        spec.control ?? null,
      ),
      this.svg,
      this.note,
    );
    this.width = 0;
    const redraw = onceAFrame(() => this.width && this.draw());
    onWidth(this.figure, (width) => {
      this.width = width;
      redraw();
    });
    shared.view.on(redraw);
    shared.hidden.on(redraw);
    shared.now.on(() => this.showNow());
    shared.pointed.on((at) => this.showPointed(at));
    this.redraw = redraw;
    this.listen();
  }

  shownRuns() {
    return this.spec.runs.filter((run) => !shared.hidden.get().has(run.index));
  }

  /** Stretches of human length, as many as the width can show. */
  gatherAll() {
    const { from, to } = shared.view.get();
    const runs = this.shownRuns();
    const room = this.width - MARGIN.left - MARGIN.right;
    const wanted = this.spec.columns ? room / (5 + 5 * runs.length) : room / 3;
    const step = Math.max(1, ...runs.map((run) => run.series.step_ms));
    const least = (to - from) / Math.max(1, wanted);
    this.stretch = least <= step ? step : Math.ceil(timeStep(least) / step) * step;
    return runs.map((run) => ({
      run,
      buckets: gather(
        this.spec.values(run),
        run.series.step_ms,
        from,
        to,
        this.stretch,
        this.spec.gaps,
      ),
    }));
  }

  scale(lines, limits) {
    const key = this.spec.columns ? "sum" : "max";
    let max = 0;
    let min = Infinity;
    for (const { buckets } of lines) {
      for (const bucket of buckets) {
        max = Math.max(max, bucket[key]);
        min = Math.min(min, this.spec.columns ? bucket.sum : bucket.min);
      }
    }
    for (const limit of limits) max = Math.max(max, limit.value);
    const top = MARGIN.top;
    const bottom = this.height - MARGIN.bottom - RAIL;
    if (this.spec.log && min > 0 && max / min > 12) {
      const ticks = logTicks(min, max);
      const [low, high] = [Math.log(ticks[0]), Math.log(ticks[ticks.length - 1])];
      const y = (v) =>
        bottom - ((Math.log(Math.max(v, ticks[0])) - low) / (high - low || 1)) * (bottom - top);
      return { ticks, y, log: true };
    }
    const ticks = linearTicks(max);
    const high = ticks[ticks.length - 1];
    return { ticks, y: (v) => bottom - (v / high) * (bottom - top), log: false };
  }

  x(at) {
    const { from, to } = shared.view.get();
    return (
      MARGIN.left + ((at - from) / (to - from || 1)) * (this.width - MARGIN.left - MARGIN.right)
    );
  }

  timeAt(x) {
    const { from, to } = shared.view.get();
    const part = (x - MARGIN.left) / (this.width - MARGIN.left - MARGIN.right);
    return from + Math.min(1, Math.max(0, part)) * (to - from);
  }

  draw() {
    const { width, height, spec } = this;
    this.lines = this.gatherAll();
    const limits = spec.limits?.(this.shownRuns()) ?? [];
    const ceilings = spec.ceiling ? this.ceilings() : [];
    const scale = this.scale([...this.lines, ...ceilings], limits);
    this.y = scale.y;
    this.bottom = height - MARGIN.bottom - RAIL;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", height);
    this.svg.setAttribute("aria-label", this.inWords());
    this.nowLine = s(
      "g",
      {},
      s("line", { class: "now", y1: MARGIN.top - 4, y2: this.bottom }),
      s("path", { class: "now-head", d: `M-4,${MARGIN.top - 8}h8l-4,6Z` }),
    );
    this.pointer = s("g", { class: "pointer", visibility: "hidden" });
    this.brush = s("rect", {
      class: "brush",
      y: MARGIN.top,
      height: this.bottom - MARGIN.top,
      width: 0,
    });
    this.svg.replaceChildren(
      this.axes(scale),
      ...ceilings.map((line) => this.ceiling(line)),
      ...(spec.columns ? this.columns() : this.bandsAndLines()),
      ...limits.map((limit) => this.limit(limit)),
      this.rail(),
      this.nowLine,
      this.pointer,
      this.brush,
    );
    this.note.textContent = this.noteText(scale);
    this.showNow();
  }

  noteText(scale) {
    if (this.lines.length === 0) return "No setup is selected.";
    const empty = this.lines.every(({ buckets }) => buckets.length === 0);
    if (empty) return "No data.";
    const parts = [];
    const each = spanInWords(this.stretch).replace(/^1 /, "");
    if (this.spec.columns) parts.push(`Sums of each ${each}.`);
    else if (this.stretch > this.shownRuns()[0]?.series.step_ms) {
      parts.push(
        `Mean of each ${each}${this.banded() ? "; the band extends from the minimum to the maximum" : ""}.`,
      );
    }
    if (scale.log) parts.push("Logarithmic scale.");
    return parts.join(" ");
  }

  inWords() {
    const about = this.lines.map(({ run, buckets }) => {
      if (buckets.length === 0) return `${run.name}: no values`;
      const all = buckets.reduce((a, b) => ({
        sum: a.sum + b.sum,
        n: a.n + b.n,
        max: Math.max(a.max, b.max),
      }));
      if (this.spec.columns) return `${run.name}: ${this.spec.format(all.sum)} in all`;
      return `${run.name}: ${this.spec.format(all.sum / all.n)} on average, at most ${this.spec.format(all.max)}`;
    });
    return `${this.spec.title} over time. ${about.join(". ")}. Arrow keys read values, Enter shows the map there.`;
  }

  axes({ ticks, y }) {
    const right = this.width - MARGIN.right;
    const { from, to } = shared.view.get();
    const times = to > from ? timeTicks(from, to, (right - MARGIN.left) / 60) : [];
    return s(
      "g",
      { class: "axes" },
      ticks.map((tick) => [
        s("line", {
          class: tick === ticks[0] ? "base" : "grid",
          x1: MARGIN.left,
          x2: right,
          y1: y(tick),
          y2: y(tick),
        }),
        s(
          "text",
          { x: MARGIN.left - 8, y: y(tick), dy: "0.32em", "text-anchor": "end" },
          this.spec.tick(tick),
        ),
      ]),
      times.map(({ at, label }) => {
        const x = this.x(at);
        const anchor = x > right - 20 ? "end" : x < MARGIN.left + 16 ? "start" : "middle";
        return s("text", { x, y: this.height - 6, "text-anchor": anchor }, label);
      }),
    );
  }

  ceilings() {
    const { from, to } = shared.view.get();
    const lines = this.shownRuns().map((run) => ({
      run,
      buckets: gather(this.spec.ceiling(run), run.series.step_ms, from, to, this.stretch),
    }));
    const alike = lines.every(({ buckets }) =>
      buckets.every((bucket, i) => lines[0].buckets[i]?.mean === bucket.mean),
    );
    return alike ? lines.slice(0, 1).map((line) => ({ ...line, neutral: true })) : lines;
  }

  ceiling({ run, buckets, neutral }) {
    return s("path", {
      class: "limit",
      style: neutral ? {} : { stroke: `var(${run.colour})` },
      d: this.path(buckets, (b) => b.mean),
    });
  }

  /** A line through the middles of stretches; it breaks where stretches are missing. */
  path(buckets, value) {
    let d = "";
    let last = null;
    const { from, to } = shared.view.get();
    for (const bucket of buckets) {
      const joined = last !== null && bucket.slot - last <= 1;
      const left = this.x(Math.max(from, bucket.from)).toFixed(1);
      const right = this.x(Math.min(to, bucket.to)).toFixed(1);
      const middle = ((Number(left) + Number(right)) / 2).toFixed(1);
      const y = this.y(value(bucket)).toFixed(1);
      d += joined
        ? `L${middle},${y}`
        : `${last === null ? "" : `L${this.lastRight},${this.lastY}`}M${left},${y}L${middle},${y}`;
      last = bucket.slot;
      this.lastRight = right;
      this.lastY = y;
    }
    return last === null ? "" : `${d}L${this.lastRight},${this.lastY}`;
  }

  banded() {
    return this.lines.length <= 3 && this.lines.some(({ buckets }) => buckets.some((b) => b.n > 1));
  }

  bandsAndLines() {
    const marks = [];
    if (this.banded()) {
      for (const { run, buckets } of this.lines) {
        const d = runsOfSlots(buckets)
          .map((part) => {
            const at = (b) => this.x((b.from + b.to) / 2).toFixed(1);
            const up = part.map((b) => `${at(b)},${this.y(b.max).toFixed(1)}`);
            const down = part.map((b) => `${at(b)},${this.y(b.min).toFixed(1)}`).reverse();
            return `M${up.join("L")}L${down.join("L")}Z`;
          })
          .join("");
        if (d) marks.push(s("path", { class: "band", style: { "--c": `var(${run.colour})` }, d }));
      }
    }
    for (const { run, buckets } of this.lines) {
      const d = this.path(buckets, (b) => b.mean);
      if (d)
        marks.push(
          s("path", {
            class: `line dash-${run.index % 6}`,
            style: { "--c": `var(${run.colour})` },
            d,
          }),
        );
    }
    return marks;
  }

  columns() {
    const n = Math.max(1, this.lines.length);
    return this.lines.map(({ run, buckets }, k) => {
      const d = buckets
        .filter((b) => b.sum > 0)
        .map((b) => {
          const left = this.x(b.from);
          const slot = this.x(b.to) - left;
          const wide = Math.max(1, Math.min(14, (slot * 0.8) / n));
          const x = left + slot / 2 + (k - n / 2) * wide;
          const y = Math.min(this.y(b.sum), this.bottom - 1);
          return `M${x.toFixed(1)},${this.bottom}V${y.toFixed(1)}h${Math.max(0.8, wide - 0.6).toFixed(1)}V${this.bottom}Z`;
        })
        .join("");
      return s("path", { class: "column", style: { "--c": `var(${run.colour})` }, d });
    });
  }

  limit({ value, label }) {
    const y = this.y(value);
    return s(
      "g",
      {},
      s("line", {
        class: "limit",
        x1: MARGIN.left,
        x2: this.width - MARGIN.right,
        y1: y,
        y2: y,
      }),
      s("rect", {
        class: "limit-back",
        x: this.width - MARGIN.right - label.length * 6.4 - 8,
        y: y - 19,
        width: label.length * 6.4 + 8,
        height: 16,
        rx: 3,
      }),
      s(
        "text",
        {
          class: "limit-name",
          x: this.width - MARGIN.right - 4,
          y: y - 7,
          "text-anchor": "end",
        },
        label,
      ),
    );
  }

  /** What happened, on a rail below: the most serious thing wherever marks would overlap. */
  rail() {
    const order = Object.keys(KINDS);
    const y = this.bottom + RAIL / 2 + 1;
    const bins = new Map();
    const { from, to } = shared.view.get();
    for (const run of this.shownRuns()) {
      for (const happening of run.happenings) {
        if (!MARKED.includes(happening.kind) || happening.at_ms < from || happening.at_ms > to)
          continue;
        const bin = Math.round(this.x(happening.at_ms) / 11);
        const before = bins.get(bin);
        if (!before || order.indexOf(happening.kind) < order.indexOf(before.happening.kind)) {
          bins.set(bin, { run, happening });
        }
      }
    }
    return s(
      "g",
      { class: "rail" },
      [...bins.values()].map(({ run, happening }) => {
        const kind = kindOf(happening.kind);
        return s("path", {
          class: kind.line ? "glyph outlined" : "glyph",
          style: { "--c": `var(${run.colour})` },
          transform: `translate(${this.x(happening.at_ms).toFixed(1)},${y})`,
          d: kind.glyph,
        });
      }),
    );
  }

  showNow() {
    if (!this.nowLine) return;
    const at = shared.now.get();
    const { from, to } = shared.view.get();
    this.nowLine.setAttribute("transform", `translate(${this.x(at).toFixed(1)},0)`);
    this.nowLine.setAttribute("visibility", at < from || at > to ? "hidden" : "visible");
  }

  showPointed(at) {
    if (!this.pointer) return;
    const { from, to } = shared.view.get();
    if (at === null || at < from || at > to) {
      this.pointer.setAttribute("visibility", "hidden");
      return;
    }
    const slot = Math.floor(at / this.stretch);
    const x = this.x(Math.min(to, Math.max(from, (slot + 0.5) * this.stretch)));
    const dots = this.lines.flatMap(({ run, buckets }) => {
      const bucket = this.spec.columns ? null : buckets.find((b) => b.slot === slot);
      return bucket
        ? [
            s("circle", {
              cx: x,
              cy: this.y(bucket.mean),
              r: 3.5,
              style: { "--c": `var(${run.colour})` },
            }),
          ]
        : [];
    });
    this.pointer.replaceChildren(
      s("line", { x1: x, x2: x, y1: MARGIN.top, y2: this.bottom }),
      ...dots,
    );
    this.pointer.setAttribute("visibility", "visible");
  }

  /** What the tooltip says of a moment. */
  reading(at) {
    const slot = Math.floor(at / this.stretch);
    const rows = this.lines.map(({ run, buckets }) => {
      const bucket = buckets.find((b) => b.slot === slot);
      const name = h("span", {}, swatch(run.colour), run.name);
      if (!bucket) return [name, this.spec.columns ? "0" : "no values"];
      if (this.spec.columns) return [name, this.spec.format(bucket.sum)];
      const spread = bucket.n > 1 && bucket.max > bucket.min;
      const range = spread
        ? h("small", {}, ` ${this.spec.format(bucket.min)} to ${this.spec.format(bucket.max)}`)
        : null;
      return [name, h("span", {}, this.spec.format(bucket.mean), range)];
    });
    const from = slot * this.stretch;
    const head = h(
      "p",
      { class: "tip-head" },
      `${moment(from)}`,
      h("small", {}, ` for ${span(this.stretch)}`),
    );
    return [head, pairs(rows), this.happenedAt(at)];
  }

  happenedAt(at) {
    const reach = Math.max(
      this.stretch / 2,
      this.timeAt(MARGIN.left + 6) - this.timeAt(MARGIN.left),
    );
    const near = this.shownRuns().flatMap((run) =>
      run.happenings
        .filter((what) => MARKED.includes(what.kind) && Math.abs(what.at_ms - at) <= reach)
        .map((what) => ({ run, what })),
    );
    if (near.length === 0) return "";
    near.sort((a, b) => a.what.at_ms - b.what.at_ms);
    const more = near.length > 4 ? h("li", {}, `and ${near.length - 4} more`) : null;
    return h(
      "ul",
      { class: "tip-list" },
      near.slice(0, 4).map(({ run, what }) => h("li", {}, swatch(run.colour), words(what.text))),
      more,
    );
  }

  listen() {
    const place = (event) => {
      const box = this.svg.getBoundingClientRect();
      return this.timeAt(((event.clientX - box.left) / box.width) * this.width);
    };
    let pressed = null;
    this.svg.addEventListener("pointermove", (event) => {
      if (!this.lines) return;
      const at = place(event);
      shared.pointed.set(at);
      tip.at(event.clientX, event.clientY, ...this.reading(at));
      if (pressed !== null) this.showBrush(pressed, at);
    });
    this.svg.addEventListener("pointerleave", () => {
      shared.pointed.set(null);
      tip.hide();
    });
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      pressed = place(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (pressed === null) return;
      const at = place(event);
      const drawn = Math.abs(this.x(at) - this.x(pressed));
      if (drawn > 12) setView(this.report, Math.min(at, pressed), Math.max(at, pressed));
      else shared.now.set(Math.round(at));
      pressed = null;
      this.brush.setAttribute("width", 0);
    });
    this.svg.addEventListener("pointercancel", () => {
      pressed = null;
      this.brush?.setAttribute("width", 0);
    });
    // Dragging with a finger scrolls, so a finger only taps.
    this.svg.addEventListener("click", (event) => {
      if (event.pointerType === "touch") shared.now.set(Math.round(place(event)));
    });
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => {
      shared.pointed.set(null);
      tip.hide();
    });
  }

  showBrush(a, b) {
    const [left, right] = [this.x(Math.min(a, b)), this.x(Math.max(a, b))];
    this.brush.setAttribute("x", left);
    this.brush.setAttribute("width", right - left);
  }

  key(event) {
    if (!this.lines) return;
    const { from, to } = shared.view.get();
    const at = shared.pointed.get() ?? Math.min(to, Math.max(from, shared.now.get()));
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    if (event.key in moves) {
      const next = (Math.floor(at / this.stretch) + 0.5 + moves[event.key]) * this.stretch;
      shared.pointed.set(Math.min(to, Math.max(from, next)));
    } else if (event.key === "Home") shared.pointed.set(from);
    else if (event.key === "End") shared.pointed.set(to);
    else if (event.key === "Enter") shared.now.set(Math.round(at));
    else if (event.key === "+" || event.key === "-") {
      const size = (to - from) * (event.key === "+" ? 0.25 : 1);
      setView(this.report, at - size, at + size);
    } else if (event.key === "Escape") {
      shared.pointed.set(null);
      tip.hide();
      return;
    } else return;
    event.preventDefault();
    const pointed = shared.pointed.get();
    if (pointed === null) return;
    const box = this.svg.getBoundingClientRect();
    tip.at(
      box.left + (this.x(pointed) / this.width) * box.width,
      box.top + 40,
      ...this.reading(pointed),
    );
  }
}

/** Shows another stretch of time, within the experiment and no shorter than a few minutes. */
function setView(report, from, to) {
  const least = Math.min(report.duration_ms, 10 * MINUTE);
  const middle = (from + to) / 2;
  const size = Math.max(to - from, least);
  const start = Math.max(0, Math.min(middle - size / 2, report.duration_ms - size));
  shared.view.set({ from: start, to: Math.min(report.duration_ms, start + size) });
}

/** Stretches in a row without a gap. */
function runsOfSlots(buckets) {
  const parts = [];
  for (const bucket of buckets) {
    const part = parts[parts.length - 1];
    if (part && bucket.slot - part[part.length - 1].slot <= 1) part.push(bucket);
    else parts.push([bucket]);
  }
  return parts;
}

/** A line of a few words' size, for tables; `most` is the top of its scale. */
function sparkline(values, colour, limit, most) {
  const [wide, high] = [120, 26];
  const known = values.filter((v) => v > 0);
  if (known.length < 2) return h("span", { class: "quiet" }, NONE);
  const per = Math.max(1, Math.ceil(values.length / 60));
  const points = gather(values, 1, 0, values.length, per, true);
  const y = (v) => (high - 2 - Math.min(1, v / most) * (high - 4)).toFixed(1);
  const x = (p) => (((p.slot + 0.5) * per * wide) / values.length).toFixed(1);
  return s(
    "svg",
    {
      class: "spark",
      width: wide,
      height: high,
      viewBox: `0 0 ${wide} ${high}`,
      "aria-hidden": "true",
    },
    limit ? s("line", { class: "limit", x1: 0, x2: wide, y1: y(limit), y2: y(limit) }) : null,
    runsOfSlots(points).map((part) =>
      s("path", {
        class: "line",
        style: { "--c": `var(${colour})` },
        d: `M${part.map((p) => `${x(p)},${y(p.mean)}`).join("L")}`,
      }),
    ),
  );
}
