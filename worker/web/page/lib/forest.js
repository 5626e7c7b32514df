// Forest plot: ratios with their 95 % intervals, one below the other on one logarithmic scale.

import { h, svg } from "./dom.js";

/** Shapes around (0, 0): what differs in colour differs in shape too. */
const SHAPES = {
  square: "M-4-4h8v8h-8z",
  diamond: "M0-5.5 5.5 0 0 5.5-5.5 0z",
  circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
  down: "M-4.5-3.5h9l-4.5 8z",
  cross: "M-4-4 4 4M-4 4 4-4",
  left: "M4-5-5 0 4 5z",
  right: "M-4-5 5 0-4 5z",
};

/** Logarithmic scale over the ratios, at least from `least` to `most`; outliers are drawn at its ends. */
export class Scale {
  constructor(values, { least, most, limit }) {
    this.low = Math.max(1 / limit, Math.min(least, ...values) / 1.04);
    this.high = Math.min(limit, Math.max(most, ...values) * 1.04);
  }

  /** Return the horizontal position of a value, in percent. */
  position(value) {
    const share = Math.log(Math.max(value, 1e-9) / this.low) / Math.log(this.high / this.low);
    return `${(100 * Math.min(1, Math.max(0, share))).toFixed(2)}%`;
  }

  contains(value) {
    return value >= this.low && value <= this.high;
  }
}

/** Vertical centre of a row's mark, in pixels. */
const MIDDLE = 12;

/** Percent of the width that a tick label needs. */
const LABEL_WIDTH = 17;

/** Return the head of a plot: its tick labels, of `ticks` ([value, label], most important first) those that fit. */
export function axis(scale, ticks) {
  const kept = [];
  for (const [value, label] of ticks) {
    const at = parseFloat(scale.position(value));
    const isFree = kept.every((other) => Math.abs(other.at - at) >= LABEL_WIDTH);
    if (scale.contains(value) && isFree) kept.push({ at, label });
  }
  // A label at an end does not reach beyond the plot.
  const anchor = (at) => (at < LABEL_WIDTH / 2 ? "text.first" : at > 100 - LABEL_WIDTH / 2 ? "text.last" : "text");
  const labels = kept.map(({ at, label }) => svg(anchor(at), { x: `${at}%`, y: "14" }, label));
  const line = svg("svg.forest-axis", { height: "20", "aria-hidden": "true" }, labels);
  return h("div.forest-head", { "aria-hidden": "true" }, h("span"), line, h("span"));
}

/**
 * Return one ratio with its interval; `kind` is its colour, `label` its text for screen readers.
 * Of an unsure one only the interval is known, and drawn.
 */
export function ratio(scale, { value, low, high, shape, kind, label, isUnsure = false }) {
  const x = (at) => scale.position(at);
  const parts = [svg("line.one", { x1: x(1), x2: x(1), y1: "-10", y2: "100%" })];
  const isKnown = value !== undefined && value !== null;
  const isBounded = low !== undefined && high !== undefined;
  if (isKnown && isBounded)
    parts.push(svg(`line.interval.${kind}`, { x1: x(low), x2: x(high), y1: MIDDLE, y2: MIDDLE }));
  if (isKnown && !(isUnsure && isBounded)) {
    const drawn = scale.contains(value) ? shape : value < scale.low ? "left" : "right";
    parts.push(svg("svg", { x: x(value), y: MIDDLE, overflow: "visible" }, mark(drawn, kind)));
  }
  const plot = svg("svg", { role: "img", "aria-label": label }, parts);
  return h(isKnown ? "div.forest-row" : "div.forest-row.bare", plot);
}

/** Return a mark alone, to stand beside its word. */
export function sign(shape, kind) {
  return h("span.sign", { "aria-hidden": "true" }, svg("svg", { viewBox: "-8 -8 16 16" }, mark(shape, kind)));
}

function mark(shape, kind) {
  return svg(`path.mark.${shape}.${kind}`, { d: SHAPES[shape] });
}
