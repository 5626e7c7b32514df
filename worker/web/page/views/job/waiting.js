// Why a queued job does not run yet: its place in the queue, and whether a worker is there to take it.

import { h } from "../../lib/dom.js";
import { number, pluralize, waitsFor } from "../../lib/format.js";

/** Return what a queued job waits for; nothing for another job. */
export function waiting(state, overview) {
  if (state.status !== "queued" || !overview) return [];
  const { queue, suspended, workers } = overview;
  const place = waitsFor(state) ? `This job ${waitsFor(state)}` : placeOf(state.position);
  const busy = workers.filter((worker) => worker.job_id).length;
  const listening = `${pluralize(workers.length, "worker")}, ${number(busy, 0)} busy`;
  if (suspended)
    return [h("p", h("strong.warn", "Workers are suspended"), " and take no job; ", h("code", "rq resume"), " ends it.")];
  if (workers.length) return [h("p", place ? `${place}; ${listening}.` : `${listening}.`)];
  const start = h("code", "preflight worker");
  return [h("p", h("strong.warn", "No worker is there"), " to take this job from the queue ", h("code", queue), ". Start one: ", start)];
}

function placeOf(before) {
  if (before === 0) return "This job is next in the queue";
  return before && `${pluralize(before, "job")} ${before === 1 ? "is" : "are"} before this one in the queue`;
}
