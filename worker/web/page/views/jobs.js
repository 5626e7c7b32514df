// All jobs: queue and workers at a glance, and the list.

import { request } from "../lib/api.js";
import { STATUSES, loading } from "../lib/components.js";
import { copyButton, fill, h, setText } from "../lib/dom.js";
import { number } from "../lib/format.js";
import { token } from "../lib/token.js";
import { JobTable } from "./job_table.js";
import { showOverview } from "./overview.js";

const POLL_INTERVAL_MS = 2000;
const MAX_JOBS = 200;

/** Show the jobs of one status, or with null all of them, in `place` until `signal` is aborted. */
export async function showJobs(place, status, { connection, signal }) {
  document.title = "preflight";
  const glance = h("section.glance", { "aria-label": "Queue and workers" });
  const list = h("div", loading("Loading jobs…"));
  const count = h("p.note");
  const heading = h("div.list-head", h("h1", { tabindex: "-1" }, "Jobs"), count, filters(status));
  fill(place, glance, heading, list);

  let table = null;
  async function refresh() {
    const query = new URLSearchParams({ limit: MAX_JOBS, ...(status ? { status } : {}) });
    const [overview, jobs] = await Promise.all([
      request("/v1/overview", { signal }),
      request(`/v1/jobs?${query}`, { signal }),
    ]);
    document.title = overview.running ? `${overview.running} running - preflight` : "preflight";
    showOverview(glance, overview);
    if (!jobs.length) {
      table = null;
      if (!list.querySelector(".empty")) fill(list, status ? noJobsWith(status) : noJobs());
    } else {
      if (!table) fill(list, (table = new JobTable()).element);
      table.show(jobs);
    }
    const shown = jobs.length < MAX_JOBS ? number(jobs.length, 0) : `the newest ${MAX_JOBS}`;
    setText(count, `${shown} in queue ${overview.queue}`);
  }
  await connection.poll("jobs", refresh, { every: POLL_INTERVAL_MS, signal });
}

function filters(chosen) {
  const links = [null, ...STATUSES].map((status) => {
    const href = status ? `#/?status=${status}` : "#/";
    return h("a", { href, "aria-current": status === chosen && "true" }, status ?? "all");
  });
  return h("nav.filters", { "aria-label": "Filter by status" }, links);
}

function noJobsWith(status) {
  return h("div.empty", h("p", `No job is ${status}. `, h("a", { href: "#/" }, "Show all jobs")));
}

function noJobs() {
  const job = '{"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn", "epochs": 3}';
  const command = [
    `curl ${location.origin}/v1/jobs`,
    ...(token() ? ['-H "authorization: Bearer $PREFLIGHT_API_TOKEN"'] : []),
    "-H 'content-type: application/json'",
    `-d '${job}'`,
  ].join(" \\\n  ");
  const code = h("code", command);
  return h(
    "div.empty",
    h("h2", "No jobs yet"),
    h("p", "New jobs appear here automatically. To enqueue one:"),
    h("div.command", h("pre", { tabindex: "0" }, code), copyButton(command, code)),
    h("p.note", "Jobs and their results are kept for a week after their last update."),
  );
}
