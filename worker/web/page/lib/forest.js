// Ratios with their 95 % intervals, one below the other on one logarithmic scale.

import { h, svg } from "./dom.js";

/** Shapes around (0, 0): what is told apart by colour is told apart by shape too. */
const SHAPES = {
  square: "M-4-4h8v8h-8z",
  diamond: "M0-5.5 5.5 0 0 5.5-5.5 0z",
  circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
  down: "M-4.5-3.5h9l-4.5 8z",
  cross: "M-4-4 4 4M-4 4 4-4",
  left: "M4-5-5 0 4 5z",
  right: "M-4-5 5 0-4 5z",
};

/** Where ratios lie between `low` and `high`; those far out are drawn at the end. */
export class Scale {
  constructor(values, { least, most, limit }) {
    this.low = Math.max(1 / limit, Math.min(least, ...values) / 1.04);
    this.high = Math.min(limit, Math.max(most, ...values) * 1.04);
  }

  /** Return where a value is, from left to right, in percent. */
  at(value) {
    const share = Math.log(Math.max(value, 1e-9) / this.low) / Math.log(this.high / this.low);
    return `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;
  }

  holds(value) {
    return value >= this.low && value <= this.high;
  }
}

/** Where the marks of a row are, in pixels from its top. */
const MIDDLE = 12;

/** Percent of the width that a number at the axis needs. */
const ROOM = 17;

/** Return the numbers above a column of ratios: of `ticks`, [value, words], those that there is room for. */
export function axis(scale, ticks) {
  const kept = [];
  for (const [value, words] of ticks) {
    const at = parseFloat(scale.at(value));
    if (scale.holds(value) && kept.every((other) => Math.abs(other.at - at) >= ROOM)) kept.push({ at, words });
  }
  const numbers = kept.map(({ at, words }) => svg("text", { x: `${at}%`, y: "14" }, words));
  return svg("svg", { class: "forest-axis", height: "20", "aria-hidden": "true" }, numbers);
}

/** Return one ratio with its interval; `kind` is its colour, and `words` say what is drawn. */
export function ratio(scale, { value, low, high, shape, kind, words }) {
  const one = svg("line", { class: "one", x1: scale.at(1), x2: scale.at(1), y1: "-10", y2: "100%" });
  const known = value !== undefined && value !== null;
  const interval =
    known &&
    low !== undefined &&
    high !== undefined &&
    svg("line", { class: `interval ${kind}`, x1: scale.at(low), x2: scale.at(high), y1: MIDDLE, y2: MIDDLE });
  const drawn = !known ? null : scale.holds(value) ? shape : value < scale.low ? "left" : "right";
  const mark =
    known &&
    svg(
      "svg",
      { x: scale.at(value), y: MIDDLE, overflow: "visible" },
      svg("path", { class: `mark ${drawn} ${kind}`, d: SHAPES[drawn] }),
    );
  return h(
    "div",
    { class: `forest-row ${known ? "" : "bare"}` },
    svg("svg", { role: "img", "aria-label": words }, [one, interval, mark]),
  );
}

/** Return a mark by itself, to stand beside its word. */
export function sign(shape, kind) {
  return h(
    "span",
    { class: "sign", "aria-hidden": "true" },
    svg("svg", { viewBox: "-8 -8 16 16" }, svg("path", { class: `mark ${shape} ${kind}`, d: SHAPES[shape] })),
  );
}
