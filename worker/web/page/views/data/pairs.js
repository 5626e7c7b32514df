// Duplicates of a version, in pairs: a page at a time.

import { Problem, request } from "../../lib/api.js";
import { panel } from "../../lib/components.js";
import { fill, h, setText } from "../../lib/dom.js";
import { number, pluralize } from "../../lib/format.js";
import { datasetPath } from "./data.js";
import { drawSamples, pictureOf } from "./pictures.js";

const PAGE = 20;
const NEAR = "300px";
/** Kind of a pair -> its title, and where the report has how many there are. */
const KINDS = {
  contradicting: ["Equal pictures of different classes", ({ contradicting_labels: found }) => found?.exact],
  exact: ["Equal pictures", ({ exact_duplicates: found }) => found?.samples],
  near: ["Nearly equal pictures", ({ near_duplicates: found }) => found?.pairs],
};

/** Return a panel for each kind of duplicates that a version has; `pictures` is whether the service has them. */
export function pairPanels(dataset, report, signal, { pictures, changes }) {
  return Object.entries(KINDS)
    .filter(([, [, count]]) => count(report))
    .map(([kind, [title]]) => pairPanel(dataset, kind, title, signal, { pictures, changes }));
}

function pairPanel(dataset, kind, title, signal, { pictures, changes }) {
  const note = h("p.note", { role: "status" });
  const list = h("ul.pairs");
  const turn = (label, pages) => h("button", { type: "button", "aria-label": `${label} ${title.toLowerCase()}`, click: () => show(first + pages * PAGE) }, label);
  const [back, next] = [turn("Previous", -1), turn("Next", 1)];
  let first = 0;
  const element = panel(title, note, list, h("div.buttons", back, next));
  let undrawn = [];
  const observer = new IntersectionObserver(drawNear, { rootMargin: NEAR });

  async function show(from) {
    const query = new URLSearchParams({ kind, first: from, count: PAGE });
    try {
      const { total, pairs } = await request(`${datasetPath(dataset)}/duplicates?${query}`, { signal });
      first = from;
      const last = first + pairs.length;
      const which = total > PAGE ? `, ${number(first + 1, 0)} to ${number(last, 0)}` : "";
      setText(note, `${pluralize(total, "pair")}${which}`);
      undrawn = [];
      fill(list, pairs.map(({ names, samples }) => h("li", [0, 1].map((index) => side(names[index], samples[index])))));
      observer.disconnect();
      if (pictures) observer.observe(element);
      back.parentElement.hidden = total <= PAGE;
      back.disabled = first === 0;
      next.disabled = last >= total;
    } catch (problem) {
      if (signal.aborted) return;
      if (!(problem instanceof Problem)) throw problem;
      setText(note, problem.message);
    }
  }

  async function drawNear(entries) {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    observer.disconnect();
    try {
      await drawSamples(dataset, undrawn, signal);
    } catch (problem) {
      if (!signal.aborted) setText(note, problem.message);
    }
  }

  function side(name, sample) {
    if (sample === null) return h("div.bare", h("code", name), h("small", "left out"));
    const words = `Sample ${number(sample, 0)}`;
    const ask = () => changes.ask(sample);
    const parts = [h("code", name), changes ? h("button.quiet", { type: "button", click: ask }, words) : h("small", words)];
    if (!pictures) return h("div.bare", parts);
    const canvas = pictureOf(sample);
    undrawn.push({ sample, canvas });
    return h("div", canvas, parts);
  }

  show(0);
  return element;
}
