// Why a queued job does not run yet: its place in the queue, and whether a worker is there to take it.

import { h, marked } from "../../lib/dom.js";
import { number, pluralize, waitsFor } from "../../lib/format.js";

/** Return what a queued job waits for; nothing for another job. */
export function waiting(state, overview) {
  if (state.status !== "queued" || !overview) return [];
  const { notice, workers } = overview;
  const place = waitsFor(state) ? `This job ${waitsFor(state)}` : placeOf(state.position);
  const busy = workers.filter((worker) => worker.job_id).length;
  const listening = `${pluralize(workers.length, "worker")}, ${number(busy, 0)} busy`;
  if (notice) return [h("p.warn", marked(notice))];
  return [h("p", place ? `${place}; ${listening}.` : `${listening}.`)];
}

function placeOf(before) {
  if (before === 0) return "This job is next in the queue";
  return before && `${pluralize(before, "job")} ${before === 1 ? "is" : "are"} before this one in the queue`;
}
