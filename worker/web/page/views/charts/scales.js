// Ranges and tick labels of the axes.

import { number, percent } from "../../lib/format.js";

/** Share of a curve at its beginning that does not decide on the range of an accuracy. */
const WARM_UP = 0.1;
const PADDING = 0.08;
/** A loss of 32 bits says nothing below. */
const LEAST_LOG = 1e-8;

/** From 0 to the highest value. */
export function rangeFromZero({ low, high }) {
  return low === null ? [0, 1] : [0, high + ((high - low) * PADDING || high * PADDING || 0.5)];
}

/** The range of the values after the first tenth: what comes before would press the rest flat. */
export function accuracyRange({ points }) {
  const [first, last] = [points[0]?.[0] ?? 0, points.at(-1)?.[0] ?? 0];
  const settled = points.filter(([x]) => x >= first + (last - first) * WARM_UP).map(([, y]) => y);
  if (!settled.length) return [0, 1];
  const [low, high] = [Math.min(...settled), Math.max(...settled)];
  const padding = (high - low) * PADDING || 0.01;
  return [Math.max(0, low - padding), Math.min(1, high + padding)];
}

/**
 * The range of positive values on a logarithmic scale.
 *
 * It begins at one digit times a power of ten: from others uPlot 1.6.32 rounds its ticks to 0, and adds them without end.
 */
export function logRange({ points }) {
  const values = points.map(([, y]) => y).filter((y) => y > 0);
  if (!values.length) return [0.1, 1];
  const below = Math.max(Math.min(...values) / 1.1, LEAST_LOG);
  const power = Math.floor(Math.log10(below));
  const digit = Math.floor(Number((below / 10 ** power).toFixed(6)));
  const least = Number(`${digit}e${power}`);
  return [least, Math.max(Math.max(...values) * 1.1, 2 * least)];
}

/** Return uPlot's tick formatter: all labels have the precision of their step. */
export function ticks(format) {
  return (_plot, values, _axis, _space, step) => values.map((value) => (value === null ? "" : format(value, step)));
}

export function plainTick(value, step) {
  return step >= 1000 && value ? `${number(value / 1000, 0)}k` : number(value, value ? decimals(step) : 0);
}

/** The tick of a logarithmic axis has the digits that it needs. */
export function logTick(value) {
  return value === null ? "" : String(Number(value.toPrecision(2)));
}

export function percentTick(value, step) {
  return percent(value, decimals(100 * step));
}

function decimals(step) {
  return Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
}
