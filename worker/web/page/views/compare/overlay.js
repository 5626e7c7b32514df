// The curves of several runs over each other, drawn by uPlot: each run has a colour and a dash of its own.

import { fill, h, svg } from "../../lib/dom.js";
import { number, percent, speed } from "../../lib/format.js";
import { accuracyRange, axisWidth, logLabels, logRange, logSplits, logTick, percentTick, plainTick, rangeFromZero, ticks } from "../charts/scales.js";

const HEIGHT = 220;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [4, 2]];
const KINDS = [
  { title: "Loss", curve: "loss", format: (value) => number(value), isLog: true, range: logRange },
  { title: "Accuracy", curve: "accuracy", format: (value) => percent(value), tick: percentTick, range: accuracyRange },
  { title: "Validation loss", curve: "val_loss", format: (value) => number(value), isLog: true, range: logRange },
  { title: "Validation accuracy", curve: "val_acc", format: (value) => percent(value), tick: percentTick, range: accuracyRange },
  { title: "Samples/s", curve: "speed", format: speed, tick: plainTick, range: ({ points }) => rangeFromZero(bounds(points)) },
];

function bounds(points) {
  const values = points.map(([, y]) => y);
  return { low: Math.min(...values), high: Math.max(...values) };
}

/** Return the sign of a run, as its line is drawn. */
export function swatch(index) {
  const line = svg("line", { x1: "0", y1: "5", x2: "24", y2: "5", "stroke-dasharray": DASHES[index].join(" ") });
  return svg(`svg.swatch.run-${index + 1}`, { viewBox: "0 0 24 10", "aria-hidden": "true" }, line);
}

export class Overlay {
  #jobs = [];
  #plots = [];
  #listeners = new AbortController();
  #resizes = new ResizeObserver(() => this.#redraw());
  element = h("div.charts");
  #width = 0;

  constructor() {
    this.#resizes.observe(this.element);
    const { signal } = this.#listeners;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#create(), { signal });
  }

  draw(jobs) {
    this.#jobs = jobs;
    this.#create();
  }

  close() {
    this.#resizes.disconnect();
    this.#listeners.abort();
    this.#plots.forEach((plot) => plot.destroy());
  }

  #redraw() {
    if (this.element.clientWidth !== this.#width) this.#create();
  }

  async #create() {
    this.#plots.forEach((plot) => plot.destroy());
    const plots = (this.#plots = []);
    this.#width = this.element.clientWidth;
    const kinds = KINDS.filter(({ curve }) => this.#jobs.some((job) => job.curves[curve]?.values.length));
    const places = kinds.map((kind) => h("div.plot", { role: "img", "aria-label": this.#label(kind) }));
    const figures = kinds.map(({ title }, index) => h("figure.chart", h("figcaption", h("strong", title)), places[index]));
    fill(this.element, figures.length ? figures : h("p.note", "No run has trained yet."));
    for (const [index, kind] of kinds.entries()) {
      await new Promise((resolve) => setTimeout(resolve)); // a slow phone answers its reader in between
      if (plots !== this.#plots || this.#listeners.signal.aborted) return;
      plots.push(this.#plot(kind, places[index]));
    }
  }

  #plot({ curve, isLog = false, tick, range }, place) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name);
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const grid = { stroke: colour("--hair"), width: 1 };
    const axis = { stroke: colour("--soft"), font, grid, ticks: { show: false }, gap: 6 };
    const lines = this.#jobs.map((job) => job.curves[curve] ?? { epochs: [], values: [] });
    const drawnLines = lines.map(({ epochs, values }) => epochs.map((epoch, index) => [epoch, values[index]]));
    const points = drawnLines.flat();
    const drawn = (value) => (isLog && value <= 0 ? null : value); // no logarithm
    const data = uPlot.join(lines.map(({ epochs, values }) => [epochs, values.map(drawn)]));
    const series = lines.map(({ values }, index) => ({
      stroke: colour(`--run-${index + 1}`),
      dash: DASHES[index],
      width: 1.5,
      spanGaps: true,
      points: { show: values.length === 1 },
    }));
    const options = {
      width: place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      padding: [12, 12, 0, 0],
      cursor: { show: false },
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1, range: () => range({ points, lines: drawnLines }) } },
      axes: [
        { ...axis, size: 24, space: 40, grid: { show: false }, values: ticks(plainTick) },
        {
          ...axis,
          size: axisWidth,
          space: 32,
          values: isLog ? (_plot, values) => values.map(logTick) : ticks(tick),
          ...(isLog ? { splits: logSplits, filter: logLabels } : {}),
        },
      ],
      series: [{}, ...series],
    };
    return new uPlot(options, data, place);
  }

  #label({ title, curve, format }) {
    const ends = this.#jobs.map(({ state, curves }) => {
      const last = curves[curve]?.values.at(-1);
      return `${state.job_id} ${last === undefined ? "has none" : `ends at ${format(last)}`}`;
    });
    return `${title} by epoch; ${ends.join(", ")}`;
  }
}
