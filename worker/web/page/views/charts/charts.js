// Training curves: loss, accuracy and speed side by side, with one zoom, and what they share: scale and smoothing.

import { fill, h } from "../../lib/dom.js";
import { number, percent, speed } from "../../lib/format.js";
import { loadPlots } from "../../lib/plots.js";
import { Chart } from "./chart.js";
import { accuracyRange, percentTick, plainTick, rangeFromZero } from "./scales.js";

const KINDS = [
  { title: "Loss", figure: 0, validated: 0, format: (value) => number(value), tick: plainTick, range: rangeFromZero },
  { title: "Accuracy", figure: 1, validated: 1, format: (value) => percent(value), tick: percentTick, range: accuracyRange },
  { title: "Samples/s", figure: 2, validated: null, format: speed, tick: plainTick, range: rangeFromZero },
];
/** Share of the epochs that is shown, from the end. */
const PARTS = { "all epochs": 1, "the last half": 0.5, "the last tenth": 0.1, "the part chosen": null };
/** Weight of the points before in a smoothed one. */
const SMOOTHINGS = { none: 0, some: 0.8, strong: 0.95 };

/** They are drawn while they are so near to what a reader sees: a phone has other things to do. */
const NEAR = { rootMargin: "300px" };
const RETRY_MS = 2000;

/** Three charts; they follow the width of `place` and the colours of the page. */
export class Charts {
  #view = { log: true, smoothing: 0, zoom: null };
  #charts = KINDS.map((kind) => new Chart(kind, this.#view, (zoom) => this.#zoom(zoom)));
  #listeners = new AbortController();
  #resizes = new ResizeObserver(() => this.#charts.forEach((chart) => chart.fit()));
  #sight = new IntersectionObserver((entries) => this.#see(entries.at(-1).isIntersecting), NEAR);
  #isNear = false;
  #timeline = null;
  #part = select("Show", Object.keys(PARTS), (name) => this.#showPart(PARTS[name]));

  constructor(place) {
    const log = h("input", { type: "checkbox", checked: true, change: () => this.#set({ log: log.checked }) });
    const smoothing = select("Smoothing", Object.keys(SMOOTHINGS), (name) => this.#set({ smoothing: SMOOTHINGS[name] }));
    const tools = h("div.tools", h("label", log, " Log scale of the loss"), smoothing, this.#part);
    const hint = h("p.note.hint", "Drag across a chart to zoom in, click twice to zoom out.");
    const elements = this.#charts.map((chart) => chart.element);
    fill(place, tools, h("div.charts", elements), hint);
    elements.forEach((element) => this.#resizes.observe(element));
    this.#sight.observe(place);
    const { signal } = this.#listeners;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#create(), { signal });
  }

  draw(timeline) {
    this.#timeline = timeline;
    this.#charts.forEach((chart) => chart.show(timeline));
    if (this.#isNear) this.#draw();
  }

  close() {
    this.#resizes.disconnect();
    this.#sight.disconnect();
    this.#listeners.abort();
    this.#charts.forEach((chart) => chart.close());
  }

  #see(isNear) {
    this.#isNear = isNear;
    if (isNear && this.#timeline) this.#draw();
  }

  async #draw() {
    try {
      await loadPlots();
    } catch {
      if (!this.#listeners.signal.aborted) setTimeout(() => this.#draw(), RETRY_MS);
      return;
    }
    this.#charts.forEach((chart) => chart.draw());
  }

  #set(changes) {
    Object.assign(this.#view, changes);
    this.#create();
  }

  #create() {
    this.#charts.forEach((chart) => chart.create());
  }

  #showPart(share) {
    if (share === null) return;
    const last = this.#timeline?.training.last?.x ?? 0;
    this.#apply(share < 1 ? [last * (1 - share), last] : null);
  }

  /** Show the epochs between two, or with null all of them, in every chart. */
  #zoom(zoom) {
    this.#part.querySelector("select").value = zoom ? "the part chosen" : "all epochs";
    this.#apply(zoom);
  }

  #apply(zoom) {
    this.#view.zoom = zoom;
    this.#charts.forEach((chart) => chart.rescale());
  }
}

function select(label, names, choose) {
  const options = names.map((name) => h("option", name));
  return h("label", `${label} `, h("select", { change: (event) => choose(event.target.value) }, options));
}
