// The model on the test set: figures of each class, confusion matrix and most confident errors with their pictures.

import { download } from "../../lib/api.js";
import { fill, h } from "../../lib/dom.js";
import { NONE, number, percent } from "../../lib/format.js";

const EVALUATION = "evaluation.json";
/** A larger file is none that a worker wrote. */
const MAX_BYTES = 2 ** 21;
/** Letters of a class name beyond which the heads of the columns are turned. */
const MOST_ACROSS = 4;

/** Show in `place` what the evaluation says, where `files` has it. */
export async function showEvaluation(place, path, files, signal) {
  const file = files.find(({ name, bytes }) => name === EVALUATION && bytes <= MAX_BYTES);
  place.hidden = !file;
  if (!file) return;
  const heading = h("h2", "Test set");
  fill(place, heading, h("p.note", { role: "status" }, "Loading the evaluation…"));
  try {
    fill(place, heading, parts(JSON.parse(await download(`${path}/files/${EVALUATION}`, { signal }))));
  } catch (problem) {
    if (signal.aborted) return;
    const again = h("button", { type: "button", click: () => showEvaluation(place, path, files, signal) }, "Read again");
    const message = problem.reason ? problem.message : "The evaluation cannot be read.";
    fill(place, heading, h("p.bad", { role: "alert" }, message), again);
  }
}

function parts({ samples, right, macro_f1: f1, classes, names, confusion, errors }) {
  const name = (label) => names?.[label] ?? label;
  const balanced = f1 === undefined ? "" : `; macro F1 ${percent(f1)}`;
  const words = `${number(right, 0)} of ${number(samples, 0)} samples are correct, ${percent(right / samples)}${balanced}.`;
  return [
    h("p", words),
    confusion ? matrix(confusion, name) : h("p.note", "The report has the confusion matrix."),
    classes && classTable(classes, name),
    errors.length > 0 && h("h3", "Most confident errors"),
    errors.length > 0 && h("ol.errors", errors.map((error) => errorItem(error, name))),
  ];
}

/** Return the figures of each class, folded: there may be a thousand. */
function classTable(classes, name) {
  const share = (right, all) => h("td.n", all ? percent(right / all) : NONE);
  const rows = classes.map(([samples, predicted, right], label) => {
    const shares = [share(right, predicted), share(right, samples), share(2 * right, samples + predicted)];
    return h("tr", h("th.n", { scope: "row" }, name(label)), h("td.n", number(samples, 0)), shares);
  });
  const heads = ["Class", "Samples", "Precision", "Recall", "F1"].map((head) => h("th.n", { scope: "col" }, head));
  const table = h("table", h("thead", h("tr", heads)), h("tbody", rows));
  const region = { role: "region", tabindex: "0", "aria-label": "Precision, recall and F1 of each class" };
  return h("details", h("summary", "Precision, recall and F1 of each class"), h("div.wide", region, table));
}

function matrix(confusion, name) {
  const most = Math.max(1, ...confusion.flatMap((row, truth) => row.filter((_, predicted) => predicted !== truth)));
  const heads = confusion.map((_, label) => String(name(label)));
  const head = (scope, text) => h("th.n", { scope, title: text }, text);
  const rows = confusion.map((row, truth) => {
    const cells = row.map((count, predicted) => h(cellName(count, truth === predicted, most), count || "·"));
    return h("tr", head("row", heads[truth]), cells);
  });
  const isNamed = heads.some((text) => text.length > MOST_ACROSS);
  const table = h(
    isNamed ? "table.confusion.named" : "table.confusion",
    h("caption", "Confusion matrix: a row for each true class, a column for each predicted one"),
    h("thead", h("tr", h("td"), heads.map((text) => head("col", text)))),
    h("tbody", rows),
  );
  const region = { role: "region", tabindex: "0", "aria-label": "Confusion matrix" };
  return h("figure", h("figcaption.note", "True class by row, predicted class by column"), h("div.wide", region, table));
}

/** Return the cell's element and class: the more errors, the stronger its colour. */
function cellName(count, isRight, most) {
  if (isRight) return "td.n.right";
  return count ? `td.n.wrong.w${Math.ceil((3 * count) / most)}` : "td.n.none";
}

function errorItem({ sample, truth, predicted, confidence, truth_confidence: rest, png }, name) {
  return h(
    "li",
    h("img", { src: `data:image/png;base64,${png}`, alt: `Test sample ${number(sample, 0)}`, width: "56", height: "56" }),
    h(
      "div",
      h("strong", `${name(truth)} taken for ${name(predicted)}`),
      h("small", `sample ${number(sample, 0)}, confidence ${percent(confidence)}; ${percent(rest)} for ${name(truth)}`),
    ),
  );
}
