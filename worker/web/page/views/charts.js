// Training curves: loss, accuracy and speed, drawn by uPlot.

import { fill, h, setText } from "../lib/dom.js";
import { NONE, number, percent, speed } from "../lib/format.js";

const HEIGHT = 190;
/** More validations than these are a line, because their points would touch. */
const MAX_MARKERS = 40;
const KINDS = [
  { title: "Loss", figure: 0, validated: 0, format: (value) => number(value), tick: plainTick, least: 0 },
  { title: "Accuracy", figure: 1, validated: 1, format: (value) => percent(value), tick: percentTick, most: 1 },
  { title: "Samples/s", figure: 2, validated: null, format: speed, tick: plainTick, least: 0 },
];

/** Three charts side by side; they follow the width of `place` and the colours of the page. */
export class Charts {
  #charts = KINDS.map((kind) => new Chart(kind));
  #listeners = new AbortController();
  #resizes = new ResizeObserver(() => this.#charts.forEach((chart) => chart.fit()));

  constructor(place) {
    const elements = this.#charts.map((chart) => chart.element);
    fill(place, elements);
    elements.forEach((element) => this.#resizes.observe(element));
    const repaint = () => this.#charts.forEach((chart) => chart.create());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint, { signal: this.#listeners.signal });
  }

  draw(timeline) {
    this.#charts.forEach((chart) => chart.draw(timeline));
  }

  close() {
    this.#resizes.disconnect();
    this.#listeners.abort();
    this.#charts.forEach((chart) => chart.close());
  }
}

class Chart {
  #kind;
  #plot = null;
  #timeline = null;
  #place = h("div.plot");
  #value = h("span.value", NONE);

  constructor(kind) {
    this.#kind = kind;
    const key = kind.validated === null ? null : h("span.key", "training ", h("i"), " validation ", h("b"));
    const caption = h("figcaption", h("strong", kind.title), this.#value, key);
    this.element = h("figure.chart", { role: "img" }, caption, this.#place);
  }

  draw(timeline) {
    this.#timeline = timeline;
    if (this.#plot) this.#plot.setData(this.#data());
    else this.create();
    this.#showValue();
  }

  /** Create the plot, in the current colours of the page. */
  create() {
    this.close();
    if (!this.#timeline || !this.element.clientWidth) return;
    this.#plot = new uPlot(this.#options(), this.#data(), this.#place);
  }

  fit() {
    if (this.#plot) this.#plot.setSize({ width: this.#place.clientWidth, height: HEIGHT });
    else this.create();
  }

  close() {
    this.#plot?.destroy();
    this.#plot = null;
  }

  #data() {
    const { training, validation } = this.#timeline;
    const { figure, validated } = this.#kind;
    const validations = validated === null ? [[], []] : validation.line(validated);
    return uPlot.join([training.line(figure), training.line(figure, { discarded: true }), validations]);
  }

  #options() {
    const style = getComputedStyle(document.documentElement);
    const names = ["--ink", "--soft", "--hair", "--accent", "--pale"];
    const [ink, soft, hair, accent, pale] = names.map((name) => style.getPropertyValue(name));
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: soft, font, grid: { stroke: hair, width: 1 }, ticks: { show: false }, gap: 6 };
    const { least, most, tick } = this.#kind;
    const line = uPlot.paths.linear();
    const hasMarkers = (plot) => plot.data[3].filter((value) => typeof value === "number").length <= MAX_MARKERS;
    const paths = (...where) => (hasMarkers(where[0]) ? null : line(...where));
    return {
      width: this.#place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      padding: [18, 12, 0, 0],
      cursor: { drag: { x: false, y: false }, y: false, sync: { key: "training" }, points: { size: 7 } },
      scales: {
        x: { time: false, range: (_, low, high) => [low < 1 ? 0 : low, Math.max(high, low + 0.1)] },
        y: { range: (_, low, high) => padded(low, high, least, most) },
      },
      axes: [
        { ...axis, size: 24, space: 40, grid: { show: false }, values: ticks(plainTick) },
        { ...axis, size: 46, space: 32, values: ticks(tick) },
      ],
      series: [
        {},
        { stroke: accent, width: 1.5, points: { show: false } },
        { stroke: pale, width: 1.5, points: { show: false } },
        { stroke: ink, width: 1.25, paths, points: { show: hasMarkers, size: 6, fill: ink } },
      ],
      hooks: {
        draw: [(plot) => drawResumes(plot, this.#timeline.resumes, soft, font)],
        setCursor: [() => this.#showValue()],
      },
    };
  }

  /** Show the value under the cursor, else the newest. */
  #showValue() {
    const { figure, validated, format, title } = this.#kind;
    const index = this.#plot?.cursor.idxs?.[1] ?? null;
    const [xs, values] = this.#plot?.data ?? [[], []];
    const newest = this.#timeline.training.last;
    const hovered = index === null ? null : (values[index] ?? null);
    const current = newest ? format(newest.values[figure]) : NONE;
    setText(this.#value, hovered === null ? current : `${format(hovered)} at epoch ${number(xs[index], 2)}`);
    const validation = validated === null ? null : this.#timeline.validation.last?.values[validated];
    const also = typeof validation === "number" ? `, ${format(validation)} on the validation samples` : "";
    const label = newest ? `${current} at epoch ${number(newest.x, 2)}${also}` : "nothing yet";
    this.element.setAttribute("aria-label", `${title} by epoch; ${label}`);
  }
}

/** Return the ends of an axis: padded, but within the possible values. */
function padded(low, high, least = -Infinity, most = Infinity) {
  if (low === null || high === null) return [0, 1];
  const padding = (high - low) * 0.08 || Math.abs(high) * 0.08 || 0.5;
  return [least === 0 ? 0 : low - padding, Math.min(most, high + padding)];
}

/** Return uPlot's tick formatter: all labels have the precision of their step. */
function ticks(format) {
  return (_plot, values, _axis, _space, step) => values.map((value) => format(value, step));
}

function plainTick(value, step) {
  return step >= 1000 && value ? `${number(value / 1000, 0)}k` : number(value, value ? decimals(step) : 0);
}

function percentTick(value, step) {
  return percent(value, decimals(100 * step));
}

function decimals(step) {
  return Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
}

/** Mark where the training resumed after an interruption. */
function drawResumes(plot, resumes, colour, font) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.font = font.replace(/^11px/, `${11 * devicePixelRatio}px`);
  for (const { x, label } of resumes) {
    const at = Math.round(plot.valToPos(x, "x", true));
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    const isLeft = at < bbox.left + bbox.width / 2;
    ctx.textAlign = isLeft ? "left" : "right";
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(label, at + (isLeft ? 5 : -5) * devicePixelRatio, bbox.top - 6 * devicePixelRatio);
  }
  ctx.restore();
}
