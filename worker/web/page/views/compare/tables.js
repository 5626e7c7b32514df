// The tables of a comparison: a row for each figure, a column for each run.

import { jobAddress, statusBadge } from "../../lib/components.js";
import { h } from "../../lib/dom.js";
import { NONE, duration, number, percent, seconds, speed, times, words } from "../../lib/format.js";
import { swatch } from "./overlay.js";

const found = ({ state, result }) => ({ ...state, ...result, status: state.status });
const took = ({ state }) => (state.started_at && state.status !== "queued" ? state.updated_at - state.started_at : undefined);

/** Rows of the results: name, value, text, and whether the highest or the lowest is the best. */
export const METRICS = [
  { name: "Status", value: (job) => job.state.status, text: (value) => statusBadge(value) },
  { name: "Test accuracy", value: (job) => found(job).test_accuracy, text: (value) => percent(value), best: Math.max },
  { name: "Macro F1", value: (job) => found(job).macro_f1, text: (value) => percent(value), best: Math.max },
  { name: "Test loss", value: (job) => found(job).test_loss, text: (value) => number(value), best: Math.min },
  { name: "Validation accuracy", value: (job) => job.state.val_acc, text: (value) => percent(value), best: Math.max },
  { name: "Training loss", value: (job) => job.state.loss, text: (value) => number(value), best: Math.min },
  { name: "Epochs", value: (job) => found(job).epochs, text: (value) => number(value, 0) },
  { name: "Best epoch", value: (job) => found(job).best_epoch, text: (value) => number(value, 0) },
  { name: "Training time", value: (job) => found(job).train_s, text: (value) => duration(value), best: Math.min },
  { name: "Took", value: took, text: (value) => duration(value), best: Math.min },
  { name: "Samples/s", value: (job) => found(job).samples_per_s, text: (value) => speed(value), best: Math.max },
  { name: "Failure", value: (job) => job.state.reason, text: (value) => words(value) },
];
/** Rows of the plans and predictions. */
export const PLAN = [
  { name: "Plan", value: (job) => job.plan_line, text: (value) => value },
  { name: "Source", value: (job) => job.plan?.source, text: (value) => value },
  { name: "Beside the job's own plan", value: gain, text: (value) => (typeof value === "number" ? times(value) : value) },
  { name: "Predicted epoch time", value: (job) => predicted(job), text: (value) => seconds(value) },
  { name: "Measured epoch time", value: (job) => found(job).measured_epoch_s, text: (value) => seconds(value), best: Math.min },
  { name: "Confidence", value: (job) => job.plan?.confidence, text: (value) => value },
];

/** The speed of the plan beside the job's own; of a doubtful one the interval in words. */
function gain({ plan, plan_speed: words }) {
  return plan?.confidence === "low" ? words : plan?.ratio;
}

function predicted(job) {
  return job.plan?.predicted_epoch_s ?? found(job).predicted_epoch_s;
}

/** Return rows of the settings that differ, or of all. */
export function settingRows({ jobs, differing }, all) {
  const names = all ? [...new Set(jobs.flatMap((job) => Object.keys(job.settings)))] : differing;
  const text = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
  const row = (name) => ({ name, value: (job) => job.settings[name], text, differs: all && differing.includes(name) });
  return names.map(row);
}

/** Return a table with its own scroll bar; rows without a value in any run are left out. */
export function table(name, { jobs }, rows) {
  const heads = jobs.map(({ state }, index) =>
    h("th.n", { scope: "col" }, swatch(index), h("a", { href: jobAddress(state.job_id) }, state.job_id)),
  );
  const isComparable = onOneDataset(jobs);
  const filled = rows.map((row) => [row, jobs.map(row.value)]).filter(([, values]) => values.some(isKnown));
  const body = filled.map(([{ name: label, text, best, differs }, values]) => {
    const compared = best && isComparable && values.filter(isKnown).length > 1;
    const winner = compared ? best(...values.filter(isKnown)) : undefined;
    const cell = (value) => h(isKnown(value) && value === winner ? "td.n.best" : "td.n", isKnown(value) ? text(value) : NONE);
    return h(differs ? "tr.differs" : "tr", h("th", { scope: "row" }, label), values.map(cell));
  });
  const head = h("thead", h("tr", h("td"), heads));
  return h(
    "div.wide",
    { role: "region", "aria-label": name, tabindex: "0" },
    h(jobs.length === 2 ? "table.pair" : "table", h("caption", name), head, h("tbody", body)),
  );
}

/** Whether all runs have one data set: on others, a figure is not better or worse. */
export function onOneDataset(jobs) {
  return new Set(jobs.map(({ state }) => state.dataset?.split("@")[0])).size < 2;
}

function isKnown(value) {
  return value !== undefined && value !== null;
}
