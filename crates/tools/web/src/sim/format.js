// How numbers, times and money read. Knows nothing of the report or of the page.

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** What stands where there is no value. */
const NONE = "–";
/** Between a number and its unit: narrow, and no line break. */
const GAP = "\u202f";
const MINUS = "\u2212";

const FIXED = [0, 1, 2, 3].map(
  (digits) =>
    new Intl.NumberFormat("en", {
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    }),
);

/** Three significant digits, and no more than `digits` behind the point. */
function plain(value, digits = 3) {
  if (!Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  const wanted = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  const text = FIXED[value === 0 ? 0 : Math.min(wanted, digits)].format(value);
  return text.replace("-", MINUS);
}

/** A value without decimals that say nothing: 12, 0.5, 1.25. */
function trim(value, digits = 2) {
  if (!Number.isFinite(value)) return NONE;
  const factor = 10 ** digits;
  const rounded = Math.round(value * factor) / factor;
  return rounded.toLocaleString("en", { maximumFractionDigits: digits }).replace("-", MINUS);
}

/** A number of things: exact up to a million, then rounded. */
function count(value) {
  if (!Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e12) return `${plain(value / 1e12)}${GAP}trillion`;
  if (size >= 1e9) return `${plain(value / 1e9)}${GAP}billion`;
  if (size >= 1e6) return `${plain(value / 1e6)}${GAP}million`;
  return trim(value, size < 100 ? 1 : 0);
}

/** The same for axes, where there is little room. */
function countShort(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)}B`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  return trim(value, size < 1 ? 3 : 1);
}

function share(value, digits = 1) {
  if (!Number.isFinite(value)) return NONE;
  return `${FIXED[digits].format(value * 100).replace("-", MINUS)}${GAP}%`;
}

function latency(us) {
  if (!Number.isFinite(us) || us <= 0) return NONE;
  if (us < 1e3) return `${plain(us)}${GAP}µs`;
  if (us < 1e6) return `${plain(us / 1e3)}${GAP}ms`;
  if (us < 120e6) return `${plain(us / 1e6)}${GAP}s`;
  return span(us / 1e3);
}

function latencyShort(us) {
  if (us === 0) return "0";
  if (us < 1e3) return `${trim(us)}${GAP}µs`;
  if (us < 1e6) return `${trim(us / 1e3)}${GAP}ms`;
  return `${trim(us / 1e6)}${GAP}s`;
}

/** A length of time in its two largest units. */
function span(ms) {
  if (!Number.isFinite(ms)) return NONE;
  if (ms === 0) return "0";
  if (ms < SECOND) return `${trim(ms, 0)}${GAP}ms`;
  if (ms < 10 * SECOND) return `${trim(ms / SECOND, 1)}${GAP}s`;
  if (ms < 2 * MINUTE) return `${trim(ms / SECOND, 0)}${GAP}s`;
  const units = [
    [DAY, "d"],
    [HOUR, "h"],
    [MINUTE, "min"],
  ];
  const first = units.findIndex(([size]) => ms >= size);
  const [size, name] = units[first];
  const finer = units[first + 1];
  let whole = Math.floor(ms / size);
  let rest = finer ? Math.round((ms % size) / finer[0]) : 0;
  if (finer && rest * finer[0] >= size) {
    whole += 1;
    rest = 0;
  }
  if (whole >= 20 || rest === 0) return `${trim(ms / size, 0)}${GAP}${name}`;
  return `${whole}${GAP}${name} ${rest}${GAP}${finer[1]}`;
}

/** A length of time in words, for sentences. */
function spanInWords(ms) {
  for (const [size, name] of [
    [DAY, "day"],
    [HOUR, "hour"],
    [MINUTE, "minute"],
  ]) {
    if (ms >= size) {
      const value = trim(ms / size, 1);
      return `${value} ${name}${value === "1" ? "" : "s"}`;
    }
  }
  return `${trim(ms / SECOND, 1)} seconds`;
}

const two = (value) => String(Math.floor(value)).padStart(2, "0");

/** A moment of the experiment: days since its start, and the time of that day. */
function moment(ms) {
  const days = Math.floor(ms / DAY);
  const rest = ms - days * DAY;
  const clock = `${two(rest / HOUR)}:${two((rest % HOUR) / MINUTE)}`;
  const seconds = rest % MINUTE >= SECOND ? `:${two((rest % MINUTE) / SECOND)}` : "";
  return `day ${days}, ${clock}${seconds}`;
}

function money(microusd) {
  if (!Number.isFinite(microusd)) return NONE;
  const usd = Math.abs(microusd) / 1e6;
  const sign = microusd < 0 ? MINUS : "";
  if (usd >= 1e9) return `${sign}$${plain(usd / 1e9)}${GAP}billion`;
  if (usd >= 1e6) return `${sign}$${plain(usd / 1e6)}${GAP}million`;
  if (usd >= 1_000 || usd === 0) return `${sign}$${FIXED[0].format(usd)}`;
  if (usd >= 0.1) return `${sign}$${FIXED[2].format(usd)}`;
  return `${sign}$${usd.toPrecision(2)}`;
}

function bytes(value) {
  for (const [size, unit] of [
    [2 ** 40, "TiB"],
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
  ]) {
    if (value >= size) return `${trim(value / size, 1)}${GAP}${unit}`;
  }
  return `${trim(value, 0)}${GAP}B`;
}

const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** `NVIDIA-A100-SXM4-80GB` as people say it: `A100 SXM4 80GB`. */
const productName = (product) => product.replace(/^NVIDIA[- ]/i, "").replaceAll("-", " ");

/** About `wanted` round values from 0 or below to `max` or above. */
function linearTicks(max, wanted = 4) {
  if (!(max > 0)) return [0, 1];
  const rough = max / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? 10 * power;
  const ticks = [];
  for (let i = 0; i * step < max + step * 0.999; i += 1) ticks.push(i * step);
  return ticks;
}

/** Round values of a logarithmic axis that encloses both. */
function logTicks(min, max) {
  const ticks = [];
  const decades = Math.log10(max / min);
  const steps = decades > 4 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5];
  for (let power = 10 ** Math.floor(Math.log10(min)); ; power *= 10) {
    for (const step of steps) {
      const value = step * power;
      const next = steps[steps.indexOf(step) + 1] ?? 10;
      if (next * power <= min) continue;
      ticks.push(value);
      if (value >= max) return ticks;
    }
  }
}

const TIME_STEPS = [
  SECOND,
  5 * SECOND,
  15 * SECOND,
  30 * SECOND,
  MINUTE,
  5 * MINUTE,
  15 * MINUTE,
  30 * MINUTE,
  HOUR,
  3 * HOUR,
  6 * HOUR,
  12 * HOUR,
  DAY,
  2 * DAY,
  5 * DAY,
  7 * DAY,
  10 * DAY,
  15 * DAY,
  30 * DAY,
  60 * DAY,
  90 * DAY,
  180 * DAY,
  365 * DAY,
];

/** The smallest step of human time that is no smaller than `ms`. */
const timeStep = (ms) => TIME_STEPS.find((step) => step >= ms) ?? Math.ceil(ms / DAY) * DAY;

/** Moments to label between two others, each with its label. */
function timeTicks(from, to, wanted) {
  const step = timeStep((to - from) / Math.max(1, wanted));
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    ticks.push({ at, label: tickLabel(at, step) });
  }
  return ticks;
}

function tickLabel(at, step) {
  const days = Math.floor(at / DAY);
  const rest = at - days * DAY;
  if (rest === 0 && (step >= DAY || days > 0)) return `day ${days}`;
  const clock = `${two(rest / HOUR)}:${two((rest % HOUR) / MINUTE)}`;
  return step < MINUTE ? `${clock}:${two((rest % MINUTE) / SECOND)}` : clock;
}
