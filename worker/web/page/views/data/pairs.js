// Duplicates of a version, in pairs: a page at a time.

import { Problem, request } from "../../lib/api.js";
import { panel } from "../../lib/components.js";
import { fill, h, setText } from "../../lib/dom.js";
import { number, pluralize } from "../../lib/format.js";
import { datasetPath } from "./data.js";

const PAGE = 20;
/** Kind of a pair -> its title, and where the report has how many there are. */
const KINDS = {
  exact: ["Equal pictures", ({ exact_duplicates: found }) => found?.samples],
  near: ["Nearly equal pictures", ({ near_duplicates: found }) => found?.pairs],
  contradicting: ["Equal pictures of different classes", ({ contradicting_labels: found }) => found?.exact],
};

/** Return a panel for each kind of duplicates that a version has. */
export function pairPanels(dataset, report, signal) {
  return Object.entries(KINDS)
    .filter(([, [, count]]) => count(report))
    .map(([kind, [title]]) => pairPanel(dataset, kind, title, signal));
}

function pairPanel(dataset, kind, title, signal) {
  const note = h("p.note", { role: "status" });
  const list = h("ul");
  const turn = (label, pages) => h("button", { type: "button", "aria-label": `${label} ${title.toLowerCase()}`, click: () => show(first + pages * PAGE) }, label);
  const [back, next] = [turn("Previous", -1), turn("Next", 1)];
  let first = 0;
  const element = panel(title, note, list, h("div.buttons", back, next));

  async function show(from) {
    const query = new URLSearchParams({ kind, first: from, count: PAGE });
    try {
      const { total, pairs } = await request(`${datasetPath(dataset)}/duplicates?${query}`, { signal });
      first = from;
      const last = first + pairs.length;
      const which = total > PAGE ? `, ${number(first + 1, 0)} to ${number(last, 0)}` : "";
      setText(note, `${pluralize(total, "pair")}${which}`);
      fill(list, pairs.map(({ names, samples }) => h("li", side(names[0], samples[0]), " = ", side(names[1], samples[1]))));
      back.parentElement.hidden = total <= PAGE;
      back.disabled = first === 0;
      next.disabled = last >= total;
    } catch (problem) {
      if (signal.aborted) return;
      if (!(problem instanceof Problem)) throw problem;
      setText(note, problem.message);
    }
  }

  show(0);
  return element;
}

function side(name, sample) {
  return [h("code", name), h("small", sample === null ? " (left out)" : ` (sample ${number(sample, 0)})`)];
}
