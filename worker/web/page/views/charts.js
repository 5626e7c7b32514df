// Loss, accuracy and speed over a training, drawn by uPlot.

import { fill, h, say } from "../lib/dom.js";
import { NONE, number, percent, speed } from "../lib/format.js";

const HEIGHT = 190;
/** So many validations are points; more are a line, as points would touch. */
const FEW = 40;
const KINDS = [
  { title: "Loss", figure: 0, validated: 0, word: (value) => number(value), tick: plainTick, least: 0 },
  { title: "Accuracy", figure: 1, validated: 1, word: (value) => percent(value), most: 1, tick: shareTick },
  { title: "Samples/s", figure: 2, validated: null, word: speed, tick: plainTick, least: 0 },
];

/** Three charts side by side; they follow the width of `place` and the colours of the page. */
export class Curves {
  #charts;
  #story = null;
  #watches;

  constructor(place) {
    this.#charts = KINDS.map((kind) => new Chart(kind));
    fill(
      place,
      this.#charts.map((chart) => chart.element),
    );
    const width = new ResizeObserver(() => this.#charts.forEach((chart) => chart.fit()));
    this.#charts.forEach((chart) => width.observe(chart.element));
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const repaint = () => this.#charts.forEach((chart) => chart.make(this.#story));
    dark.addEventListener("change", repaint);
    this.#watches = () => {
      width.disconnect();
      dark.removeEventListener("change", repaint);
      this.#charts.forEach((chart) => chart.end());
    };
  }

  /** Show where the training is. */
  draw(story) {
    this.#story = story;
    this.#charts.forEach((chart) => chart.draw(story));
  }

  end() {
    this.#watches();
  }
}

class Chart {
  #kind;
  #plot = null;
  #story = null;
  #place = h("div", { class: "plot" });
  #value = h("span", { class: "value" }, NONE);

  constructor(kind) {
    this.#kind = kind;
    const key =
      kind.validated === null ? null : h("span", { class: "key" }, "training ", h("i"), " validation ", h("b"));
    const caption = h("figcaption", {}, h("strong", {}, kind.title), this.#value, key);
    this.element = h("figure", { class: "chart", role: "img" }, caption, this.#place);
  }

  draw(story) {
    this.#story = story;
    if (this.#plot) this.#plot.setData(this.#data());
    else this.make(story);
    this.#tell();
  }

  /** Make the chart anew: its colours are those of the page now. */
  make(story) {
    this.end();
    this.#story = story;
    if (!story || !this.element.clientWidth) return;
    this.#plot = new uPlot(this.#options(), this.#data(), this.#place);
  }

  fit() {
    if (this.#plot) this.#plot.setSize({ width: this.#place.clientWidth, height: HEIGHT });
    else this.make(this.#story);
  }

  end() {
    this.#plot?.destroy();
    this.#plot = null;
  }

  #data() {
    const { training, validation } = this.#story;
    const { figure, validated } = this.#kind;
    const validations = validated === null ? [[], []] : validation.line(validated);
    return uPlot.join([training.line(figure), training.line(figure, { lost: true }), validations]);
  }

  #options() {
    const style = getComputedStyle(document.documentElement);
    const [ink, soft, hair, accent, pale] = ["--ink", "--soft", "--hair", "--accent", "--pale"].map((name) =>
      style.getPropertyValue(name),
    );
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: soft, font, grid: { stroke: hair, width: 1 }, ticks: { show: false }, gap: 6 };
    const { least, most, tick } = this.#kind;
    const line = uPlot.paths.linear();
    const few = (plot) => plot.data[3].filter((value) => typeof value === "number").length <= FEW;
    const points = { show: few, size: 6, fill: ink };
    return {
      width: this.#place.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      padding: [18, 12, 0, 0],
      cursor: { drag: { x: false, y: false }, y: false, sync: { key: "training" }, points: { size: 7 } },
      scales: {
        x: { time: false, range: (_, low, high) => [low < 1 ? 0 : low, Math.max(high, low + 0.1)] },
        y: { range: (_, low, high) => around(low, high, least, most) },
      },
      axes: [
        { ...axis, size: 24, space: 40, grid: { show: false }, values: ticks(plainTick) },
        { ...axis, size: 46, space: 32, values: ticks(tick) },
      ],
      series: [
        {},
        { stroke: accent, width: 1.5, points: { show: false } },
        { stroke: pale, width: 1.5, points: { show: false } },
        { stroke: ink, width: 1.25, paths: (...where) => (few(where[0]) ? null : line(...where)), points },
      ],
      hooks: { draw: [(plot) => drawMarks(plot, this.#story.marks, soft, font)], setCursor: [() => this.#tell()] },
    };
  }

  /** Say the value under the cursor, else the newest. */
  #tell() {
    const { figure, validated, word, title } = this.#kind;
    const at = this.#plot?.cursor.idxs?.[1] ?? null;
    const [xs, values] = [this.#plot?.data[0] ?? [], this.#plot?.data[1] ?? []];
    const newest = this.#story.training.last;
    const hovered = at !== null && values[at] !== undefined && values[at] !== null;
    const [x, value] = hovered ? [xs[at], values[at]] : [newest?.x, newest?.values[figure]];
    say(this.#value, value === undefined ? NONE : hovered ? `${word(value)} at epoch ${number(x, 2)}` : word(value));
    const checked = validated === null ? null : this.#story.validation.last;
    const also = checked?.values[validated] ?? null;
    this.element.setAttribute(
      "aria-label",
      newest
        ? `${title} by epoch; ${word(newest.values[figure])} at epoch ${number(newest.x, 2)}` +
            (also === null ? "" : `, ${word(also)} on the validation samples`)
        : `${title} by epoch; nothing yet`,
    );
  }
}

/** Return the ends of an axis: a little beyond the values, but not beyond what is possible. */
function around(low, high, least = -Infinity, most = Infinity) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.08 || 0.5;
  return [least === 0 ? 0 : low - room, Math.min(most, high + room)];
}

/** Return what uPlot asks for the words at an axis: all as fine as their step is. */
function ticks(word) {
  return (_plot, values, _axis, _space, step) => values.map((value) => word(value, step));
}

function plainTick(value, step) {
  return step >= 1000 && value ? `${number(value / 1000, 0)}k` : number(value, value ? decimals(step) : 0);
}

function shareTick(value, step) {
  return `${number(100 * value, decimals(100 * step))} %`;
}

function decimals(step) {
  return Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
}

/** Mark where the training went on after an interruption. */
function drawMarks(plot, marks, colour, font) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.font = font.replace(/^11px/, `${11 * devicePixelRatio}px`);
  for (const { x, words } of marks) {
    const at = Math.round(plot.valToPos(x, "x", true));
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    const right = at < bbox.left + bbox.width / 2;
    ctx.textAlign = right ? "left" : "right";
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(words, at + (right ? 5 : -5) * devicePixelRatio, bbox.top - 6 * devicePixelRatio);
  }
  ctx.restore();
}
