// One curve over the epochs, drawn by uPlot: training, discarded, validation, and raw values behind a smoothed curve.

import { h, setText } from "../../lib/dom.js";
import { NONE, number } from "../../lib/format.js";
import { nearest, shown, smoothed } from "./lines.js";
import { drawResumes } from "./resumes.js";
import { axisWidth, logLabels, logRange, logSplits, logTick, plainTick, ticks } from "./scales.js";

const HEIGHT = 190;
/** More validations than these are a line, because their points would touch. */
const MAX_MARKERS = 40;

export class Chart {
  #kind;
  #view;
  #zoom;
  #plot = null;
  #timeline = null;
  #place = h("div.plot", { role: "img" });
  #value = h("span.value", NONE);

  /** `view` is shared by all charts: {log, smoothing, zoom}; `zoom` is called with the epochs that were chosen. */
  constructor(kind, view, zoom) {
    this.#kind = kind;
    this.#view = view;
    this.#zoom = zoom;
    const key = kind.validated === null ? null : h("span.key", "training ", h("i"), " validation ", h("b"));
    const caption = h("figcaption", h("strong", kind.title), this.#value, key);
    this.element = h("figure.chart", caption, this.#place);
  }

  /** Show the newest value; the curve follows with draw(). */
  show(timeline) {
    this.#timeline = timeline;
    this.#showValue();
  }

  draw() {
    if (this.#plot) this.#plot.setData(this.#data());
    else this.create();
  }

  /** Create the plot, in the current colours of the page. */
  create() {
    this.close();
    if (!this.#timeline || !this.element.clientWidth || !("uPlot" in window)) return;
    this.#plot = new uPlot(this.#options(), this.#data(), this.#place);
  }

  fit() {
    if (this.#plot) this.#plot.setSize({ width: this.#place.clientWidth, height: HEIGHT });
    else this.create();
  }

  /** Show the epochs that `view.zoom` has now. */
  rescale() {
    this.#plot?.setData(this.#plot.data);
  }

  close() {
    this.#plot?.destroy();
    this.#plot = null;
  }

  get #isLog() {
    return this.#kind.figure === 0 && this.#view.log;
  }

  #data() {
    const { training, validation } = this.#timeline;
    const { figure, validated } = this.#kind;
    const raw = training.line(figure);
    const lines = [
      smoothed(raw, this.#view.smoothing),
      training.line(figure, { discarded: true }),
      validated === null ? [[], []] : validation.line(validated),
      raw,
    ];
    return uPlot.join(this.#isLog ? lines.map(([xs, ys]) => [xs, ys.map((y) => (y > 0 ? y : null))]) : lines);
  }

  #options() {
    const style = getComputedStyle(document.documentElement);
    const names = ["--ink", "--soft", "--hair", "--accent", "--pale"];
    const [ink, soft, hair, accent, pale] = names.map((name) => style.getPropertyValue(name));
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: soft, font, grid: { stroke: hair, width: 1 }, ticks: { show: false }, gap: 6 };
    const line = uPlot.paths.linear();
    const hasMarkers = (plot) => plot.data[3].filter((value) => typeof value === "number").length <= MAX_MARKERS;
    const paths = (...where) => (hasMarkers(where[0]) ? null : line(...where));
    const yTicks = this.#isLog ? (_, values) => values.map(logTick) : ticks(this.#kind.tick);
    return {
      width: this.#place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      padding: [18, 12, 0, 0],
      cursor: {
        drag: { x: true, y: false, setScale: false },
        y: false,
        sync: { key: "training" },
        points: { size: 7 },
        bind: { dblclick: () => () => this.#zoom(null) },
      },
      scales: {
        x: { time: false, range: (_, low, high) => this.#view.zoom ?? [low < 1 ? 0 : low, Math.max(high, low + 0.1)] },
        y: { distr: this.#isLog ? 3 : 1, range: (plot) => (this.#isLog ? logRange : this.#kind.range)(shown(plot.data, this.#view.zoom)) },
      },
      axes: [
        { ...axis, size: 24, space: 40, grid: { show: false }, values: ticks(plainTick) },
        { ...axis, size: axisWidth, space: 32, values: yTicks, ...(this.#isLog ? { splits: logSplits, filter: logLabels } : {}) },
      ],
      series: [
        {},
        { stroke: accent, width: 1.5, points: { show: false } },
        { stroke: pale, width: 1.5, points: { show: false } },
        { stroke: ink, width: 1.25, paths, points: { show: hasMarkers, size: 6, fill: ink } },
        { stroke: pale, width: 1, show: this.#view.smoothing > 0, points: { show: false } },
      ],
      hooks: {
        draw: [(plot) => drawResumes(plot, this.#timeline.resumes, soft, font)],
        setCursor: [() => this.#showValue()],
        setSelect: [(plot) => this.#select(plot)],
      },
    };
  }

  /** Zoom into the epochs over which the pointer was dragged. */
  #select(plot) {
    const { left, width } = plot.select;
    if (width < 5) return;
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.#zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
  }

  /** Show the raw value under the cursor, and the validation there, else the newest. */
  #showValue() {
    const { figure, validated, format, title } = this.#kind;
    const newest = this.#timeline.training.last;
    const current = newest ? format(newest.values[figure]) : NONE;
    setText(this.#value, this.#hovered() ?? current);
    const validation = validated === null ? null : this.#timeline.validation.last?.values[validated];
    const also = typeof validation === "number" ? `, ${format(validation)} on the validation samples` : "";
    const label = newest ? `${current} at epoch ${number(newest.x, 2)}${also}` : "nothing yet";
    this.#place.setAttribute("aria-label", `${title} by epoch; ${label}`);
  }

  #hovered() {
    const { idx } = this.#plot?.cursor ?? {};
    if (idx === null || idx === undefined) return null;
    const [xs, , , validations, raw] = this.#plot.data;
    const at = nearest(raw, idx);
    if (at === null) return null;
    const { format } = this.#kind;
    const validation = Number.isFinite(validations[idx]) ? ` (validation ${format(validations[idx])})` : "";
    return `${format(raw[at])} at epoch ${number(xs[at], 2)}${validation}`;
  }
}
