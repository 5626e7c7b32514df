// Ranges and tick labels of the axes.

import { number, percent } from "../../lib/format.js";

/** Share of a curve at its beginning that does not decide on the range of an accuracy. */
const WARM_UP = 0.1;
const PADDING = 0.08;
/** A loss of 32 bits says nothing below. */
const LEAST_LOG = 1e-8;
/** Powers of ten on an axis that has lines between them, too. */
const MOST_POWERS = 7;

/** From 0 to the highest value. */
export function rangeFromZero({ low, high }) {
  return low === null ? [0, 1] : [0, high + ((high - low) * PADDING || high * PADDING || 0.5)];
}

/** The range of the values after the first tenth of each line: what comes before would press the rest flat. */
export function accuracyRange({ points, lines = [points] }) {
  const settled = lines.flatMap((line) => settledOf(line).map(([, y]) => y));
  if (!settled.length) return [0, 1];
  const [low, high] = [Math.min(...settled), Math.max(...settled)];
  const padding = (high - low) * PADDING || 0.01;
  return [Math.max(0, low - padding), Math.min(1, high + padding)];
}

/** The points of a line after its first tenth; its last point always. */
function settledOf(line) {
  const [first, last] = [line[0]?.[0] ?? 0, line.at(-1)?.[0] ?? 0];
  return line.filter(([x]) => x >= first + (last - first) * WARM_UP);
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

/** Powers of ten on a logarithmic axis, a few where there are many: 1e26 has no line for each digit. */
export function logSplits(_plot, _axis, low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const every = Math.ceil((last - first) / MOST_POWERS);
  const digits = last - first > MOST_POWERS ? [1] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
  const splits = [];
  for (let power = first; power <= last; power += every || 1)
    for (const digit of digits) splits.push(Number(`${digit}e${power}`));
  return splits.filter((value) => value >= low && value <= high);
}

/** The lines of a logarithmic axis that have a label: each where they are powers alone, else 1, 2 and 5, or 1. */
export function logLabels(_plot, splits) {
  const digit = (value) => Number(value.toExponential()[0]);
  const hasAll = splits.every((value) => digit(value) === 1);
  const isShort = splits.at(-1) / splits[0] <= 100;
  return splits.map((value) => (hasAll || digit(value) === 1 || (isShort && [2, 5].includes(digit(value))) ? value : null));
}

/** Pixels of an axis that its labels need. */
export function axisWidth(_plot, labels) {
  const longest = Math.max(0, ...(labels ?? []).map((label) => label?.length ?? 0));
  return Math.max(46, 14 + 6.4 * longest);
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
  if (value === null) return "";
  return value >= 1e5 ? value.toExponential(0).replace("+", "") : String(Number(value.toPrecision(2)));
}

export function percentTick(value, step) {
  return percent(value, decimals(100 * step));
}

function decimals(step) {
  return Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
}
