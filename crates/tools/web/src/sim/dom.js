// Making elements, and the few things all parts of the page share: signals, the tooltip, redrawing.
// Text reaches the page as text nodes only: names come from manifests and may hold anything.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") {
      for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    } else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false),
  );
  return element;
}

/** An HTML element. `on…` props are listeners, `style` is an object, `true` an empty attribute. */
const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
/** An SVG element. */
const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
const byId = (id) => document.getElementById(id);
const hiddenText = (text) => h("span", { class: "sr" }, text);

/** A value with listeners that are called at once and on every change. */
function signal(value) {
  const listeners = [];
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const listener of listeners) listener(value);
    },
    on(listener) {
      listeners.push(listener);
      listener(value);
    },
  };
}

/** Runs `draw` once in the next frame, however often it is asked to. */
function onceAFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/** Calls `draw(width)` whenever the element's width changes, and once it has one. */
function onWidth(element, draw) {
  let width = 0;
  new ResizeObserver(([entry]) => {
    const next = Math.floor(entry.contentRect.width);
    if (next === width || next === 0) return;
    width = next;
    draw(width);
  }).observe(element);
}

/** Colours by the name of their custom property, for canvases. Forgotten when the scheme changes. */
const palette = (() => {
  let known = new Map();
  const changed = signal(0);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    known = new Map();
    changed.set(changed.get() + 1);
  });
  return {
    changed,
    get(name) {
      let colour = known.get(name);
      if (colour === undefined) {
        colour = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
        known.set(name, colour);
      }
      return colour;
    },
  };
})();

/** The one tooltip: content beside a point of the window or beside an element. */
const tip = (() => {
  const box = () => byId("tip");
  function place(x, y, gap) {
    const { offsetWidth: w, offsetHeight: tall } = box();
    const right = document.documentElement.clientWidth;
    let left = x + gap;
    if (left + w > right - 8) left = x - gap - w;
    if (left < 8) left = Math.max(8, Math.min(x - w / 2, right - w - 8));
    let top = y + gap;
    if (top + tall > innerHeight - 8) top = Math.max(8, y - gap - tall);
    box().style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }
  return {
    at(x, y, ...content) {
      box().replaceChildren(...content);
      box().hidden = false;
      place(x, y, 14);
    },
    beside(element, ...content) {
      const r = element.getBoundingClientRect();
      box().replaceChildren(...content);
      box().hidden = false;
      place(r.left + Math.min(r.width, 160), r.bottom, 6);
    },
    hide() {
      box().hidden = true;
    },
  };
})();

/** Rows of a tooltip: pairs of a name and a value, either of them text or an element. */
const pairs = (rows) =>
  h(
    "dl",
    { class: "pairs" },
    rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );

const swatch = (colour) => h("i", { class: "swatch", style: { "--c": `var(${colour})` } });

/** A table in a box of its own that scrolls where the window is narrow. */
function tableBox(caption, head, bodies, props = {}) {
  const table = h(
    "table",
    props,
    h("caption", { class: "sr" }, caption),
    h("thead", {}, head),
    bodies,
  );
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
}

const columnHead = (text, props = {}) => h("th", { scope: "col", ...props }, text);

/** Radio buttons that look like one control. Calls `choose` with the chosen value. */
function segmented(name, options, chosen, choose) {
  return options.map(([value, label, colour]) =>
    h(
      "label",
      {},
      h("input", {
        type: "radio",
        name,
        value,
        checked: value === chosen,
        onchange: () => choose(value),
      }),
      h("span", {}, colour ? swatch(colour) : null, label),
    ),
  );
}
