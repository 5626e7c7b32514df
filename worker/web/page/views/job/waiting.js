// Why a queued job does not run yet: its place in the queue, and whether a worker is there to take it.

import { h } from "../../lib/dom.js";
import { number, pluralize, waitsFor } from "../../lib/format.js";

/** Return what a queued job waits for; nothing for another job. */
export function waiting(state, overview) {
  if (state.status !== "queued" || !overview) return [];
  const { queue, suspended, workers } = overview;
  const before = state.position;
  const place = waitsFor(state) || (before === 0 ? "next in the queue" : before && `${pluralize(before, "job")} before it`);
  const busy = workers.filter((worker) => worker.job_id).length;
  const listening = `${pluralize(workers.length, "worker")}, ${number(busy, 0)} busy`;
  if (suspended)
    return [h("p", h("strong.warn", "Workers are suspended"), " and take no job; ", h("code", "rq resume"), " ends it.")];
  if (workers.length) return [h("p", place ? `This job is ${place}; ${listening}.` : `${listening}.`)];
  const start = h("code", "preflight worker");
  return [h("p", h("strong.warn", "No worker is there"), " to take this job from the queue ", h("code", queue), ". Start one: ", start)];
}
