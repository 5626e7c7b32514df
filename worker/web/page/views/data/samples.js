// Samples of a class: pages of a grid, drawn while they are near the window and let go afterwards.

import { fetchBlob } from "../../lib/api.js";
import { fill, h, setText } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { datasetPath } from "./data.js";

const PAGE = 60;
/** Pixels of a sample on the page, at least. */
const SIDE = 48;
const NEAR = "300px";

/** A choice of class, and its samples. */
export class SampleGrid {
  #path;
  #signal;
  #grid = h("div.samples", { tabindex: "0", role: "region" });
  #note = h("p.note", { role: "status" });
  #observer;
  #classes;
  #changes;

  /** `changes` are those to the version; null: nothing may be changed. */
  constructor(dataset, classes, signal, changes) {
    this.#path = `${datasetPath(dataset)}/samples`;
    this.#signal = signal;
    this.#classes = classes;
    this.#changes = changes;
    const change = "Click a sample, or choose it with the arrow keys and Enter, to give it another class, leave it out or delete it.";
    const hint = changes && h("p.note", change);
    const options = classes.map((one, label) => h("option", { value: label }, `${one.name} (${number(totalOf(one), 0)})`));
    const select = h("select", { id: "sample-class", change: () => show() }, options);
    const show = () => this.#show(Number(select.value), classes[select.value]);
    this.element = h("div", h("label", { for: "sample-class" }, "Class"), select, hint, this.#grid, this.#note);
    show();
  }

  #show(label, one) {
    this.#observer?.disconnect();
    this.#observer = new IntersectionObserver((entries) => this.#onMove(entries), { root: this.#grid, rootMargin: NEAR });
    this.#grid.setAttribute("aria-label", `Samples of ${one.name}`);
    const count = Math.ceil(totalOf(one) / PAGE);
    const pages = Array.from({ length: count }, (_, page) => {
      const first = page * PAGE;
      const element = h("div.page");
      this.#observer.observe(element);
      return Object.assign(element, { label, ask: `${this.#path}?${new URLSearchParams({ label, first, count: PAGE })}` });
    });
    fill(this.#grid, pages);
    this.#grid.scrollTop = 0;
    setText(this.#note, "");
  }

  #onMove(entries) {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && !target.firstChild) this.#draw(target);
      else if (!isIntersecting && target.firstChild) {
        target.style.height = `${target.clientHeight}px`; // the rest stays where it is
        fill(target);
      }
    }
  }

  /** Have clicks and keys of a page choose a sample. */
  #listen(page, canvas, grid) {
    const mark = h("span.chosen", { hidden: true });
    const { samples, columns } = grid;
    let place = 0;
    const choose = (next) => {
      if (next < 0 || next >= samples.length) return;
      place = next;
      mark.hidden = false;
      frame(mark, place, grid);
      canvas.setAttribute("aria-label", `Sample ${number(samples[place], 0)}`);
    };
    canvas.tabIndex = 0;
    canvas.parentElement.append(mark);
    canvas.addEventListener("click", ({ offsetX: x, offsetY: y }) => {
      const rows = Math.ceil(samples.length / columns);
      const column = Math.floor((x / canvas.clientWidth) * columns);
      choose(Math.floor((y / canvas.clientHeight) * rows) * columns + column);
      if (place < samples.length) this.#changes.ask(samples[place], this.#classes[page.label].name);
    });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      if (step === undefined && event.key !== "Enter") return;
      event.preventDefault();
      if (step === undefined) this.#changes.ask(samples[place], this.#classes[page.label].name);
      else choose(mark.hidden ? 0 : place + step);
    });
  }

  async #draw(page) {
    const canvas = h("canvas", { role: "img", "aria-label": "Samples" });
    fill(page, h("div.sheet", canvas));
    try {
      const { blob, headers } = await fetchBlob(page.ask, { signal: this.#signal });
      const [width, , columns] = headers.get("x-grid").split(",").map(Number);
      const samples = headers.get("x-samples").split(",").map(Number);
      const picture = await createImageBitmap(blob);
      Object.assign(canvas, { width: picture.width, height: picture.height });
      canvas.getContext("2d").drawImage(picture, 0, 0);
      canvas.style.width = `${columns * Math.max(SIDE, width)}px`;
      page.style.height = "";
      picture.close();
      if (this.#changes) this.#listen(page, canvas, { samples, columns });
    } catch (problem) {
      if (!this.#signal.aborted) setText(this.#note, problem.message);
    }
  }
}

/** Mark a place of a page: its left, top, width and height in percent of the canvas. */
function frame(mark, place, { samples, columns }) {
  const rows = Math.ceil(samples.length / columns);
  const at = [(place % columns) / columns, Math.floor(place / columns) / rows, 1 / columns, 1 / rows];
  for (const [index, side] of ["left", "top", "width", "height"].entries()) mark.style[side] = `${100 * at[index]}%`;
}

function totalOf({ train, validation, test }) {
  return train + validation + test;
}
