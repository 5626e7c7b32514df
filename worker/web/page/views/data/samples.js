// Samples of a class: pages of pictures, drawn while they are near the window and let go afterwards.

import { fill, h, setText } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { NOWHERE } from "./changes.js";
import { fetchSamples, pictureOf } from "./pictures.js";

const MOST = 60;
const NEAR = "300px";
/** Height of a page that was not drawn yet. */
const EMPTY = "6rem";

/** A choice of class, and its samples. */
export class SampleGrid {
  #dataset;
  #signal;
  #grid = h("div.samples", { role: "region", keydown: (event) => this.#onKey(event) });
  #note = h("p.note", { role: "status" });
  #observer;
  #changes;
  #page = MOST; // samples of a page: of large pictures the service sends fewer at a time

  /** `changes` are those to the version; null: nothing may be changed. */
  constructor(dataset, classes, signal, changes) {
    this.#dataset = dataset;
    this.#signal = signal;
    this.#changes = changes;
    const change = "Click a picture, or choose it with the arrow keys and Enter, to move it to another class, leave it out or delete it.";
    const hint = changes && h("p.note", change);
    const options = classes.map((one, label) => h("option", { value: label }, `${one.name} (${number(totalOf(one), 0)})`));
    const select = h("select", { id: "sample-class", change: () => show() }, options);
    const show = () => this.#show(Number(select.value), classes[select.value]);
    this.element = h("div", h("label", { for: "sample-class" }, "Class"), select, hint, this.#grid, this.#note);
    if (!changes) this.#grid.tabIndex = 0; // it has no buttons by which keys could scroll it
    changes?.addEventListener("change", () => this.#grid.querySelectorAll(".sample").forEach((one) => this.#mark(one)));
    show();
  }

  #show(label, one) {
    this.#observer?.disconnect();
    this.#observer = new IntersectionObserver((entries) => this.#onMove(entries), { root: this.#grid, rootMargin: NEAR });
    this.#grid.setAttribute("aria-label", `Samples of ${one.name}`);
    fill(this.#grid, this.#pageOf(label, one, 0));
    this.#grid.scrollTop = 0;
    setText(this.#note, "");
  }

  #pageOf(label, one, first) {
    const page = Object.assign(h("div.page"), { label, one, first });
    page.style.height = EMPTY;
    this.#observer.observe(page);
    return page;
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

  async #draw(page) {
    const { label, one, first } = page;
    try {
      const { samples, draw } = await fetchSamples(this.#dataset, { label, first, count: this.#page }, this.#signal);
      if (!page.isConnected) return;
      const isAlone = !this.#grid.querySelector("[tabindex='0']"); // one picture of all is reached by Tab
      fill(page, samples.map((sample, place) => this.#picture(sample, one.name, (canvas) => draw(place, canvas), isAlone && !place)));
      page.style.height = "";
      if (!first && !page.nextSibling && totalOf(one) > samples.length) this.#addPages(page);
    } catch (problem) {
      if (!this.#signal.aborted) setText(this.#note, problem.message);
    }
  }

  /** Add the other pages, of as many samples as the first one has in whole rows. */
  #addPages(page) {
    const { label, one, children } = page;
    this.#page = children.length - (children.length % columnsOf([...children])) || children.length;
    fill(page, [...children].slice(0, this.#page));
    const rest = Math.ceil(totalOf(one) / this.#page) - 1;
    page.after(...Array.from({ length: rest }, (_, index) => this.#pageOf(label, one, (index + 1) * this.#page)));
  }

  #picture(sample, own, draw, isFirst) {
    const canvas = pictureOf(sample);
    draw(canvas);
    if (!this.#changes) return canvas;
    const ask = () => this.#changes.ask(sample, own);
    const button = h("button.sample", { type: "button", tabindex: isFirst ? "0" : "-1", "data-sample": sample, click: ask }, canvas);
    this.#mark(button);
    return button;
  }

  /** Frame a picture that is about to be changed. */
  #mark(button) {
    const name = this.#changes.of(Number(button.dataset.sample));
    button.classList.toggle("changed", name !== undefined);
    button.title = name === undefined ? "" : name === NOWHERE ? "left out" : `to ${name}`;
  }

  /** Move the focus by the arrow keys. */
  #onKey(event) {
    const all = [...this.#grid.querySelectorAll(".sample")];
    const from = all.indexOf(event.target);
    const columns = columnsOf(all);
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    const next = all[from + step];
    if (from < 0 || step === undefined) return;
    event.preventDefault();
    if (!next) return;
    [event.target.tabIndex, next.tabIndex] = [-1, 0];
    next.focus();
  }
}

/** How many of these are in the first row. */
function columnsOf(elements) {
  return elements.filter(({ offsetTop }) => offsetTop === elements[0]?.offsetTop).length;
}

function totalOf({ train, validation, test }) {
  return train + validation + test;
}
