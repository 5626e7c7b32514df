// The queue and its workers.

import { jobAddress } from "../../lib/components.js";
import { fill, h, marked } from "../../lib/dom.js";
import { number } from "../../lib/format.js";

const MAX_SILENCE_S = 90; // an RQ worker sends a heartbeat about every minute

/** Show queue and workers in `place`; `counts` are those of the list, so that both agree. */
export function showOverview(place, overview, { queued = 0, running = 0 }) {
  const { notice, suspended, workers, jobs_per_hour: pace } = overview;
  const hourly = Number.isFinite(pace) ? { "Jobs an hour": Math.round(pace) } : {};
  const counts = Object.entries({ Queued: queued, Running: running, Workers: workers.length, ...hourly });
  const tiles = counts.map(([name, count]) => h("div.count", h("strong", number(count, 0)), h("span", name)));
  const said = notice && h(suspended ? "p.banner" : "p.note", { role: "status" }, marked(notice));
  const list = workers.length > 0 && h("ul.workers", workers.map(workerItem));
  fill(place, suspended && said, h("div.counts", tiles), list, !suspended && said);
}

function workerItem({ name, state, job_id, member_of: led, hostname, silent_s }) {
  const idle = state === "suspended" ? state : "idle";
  const id = job_id ?? led;
  return h(
    "li",
    h(id ? "span.dot.busy" : "span.dot.idle", { "aria-hidden": "true" }),
    h("span.worker", h("strong", hostname ?? name), h("small", name)),
    h("span.doing", id ? h("a", { href: jobAddress(id) }, id) : idle, !job_id && led ? ", as a member" : null),
    silent_s > MAX_SILENCE_S && h("small.warn", `no heartbeat for ${number(silent_s, 0)} s`),
  );
}
