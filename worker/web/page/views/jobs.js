// All jobs: the queue and the workers at a glance, and a list to choose from.

import { hasToken, request } from "../lib/api.js";
import { arrange, copyButton, fill, h, say } from "../lib/dom.js";
import { pill } from "../lib/components.js";
import { NONE, ago, number, percent, speed } from "../lib/format.js";

const EVERY = 2000;
const MOST = 200;
/** What the list can be narrowed down to. */
export const STATUSES = ["queued", "running", "finished", "failed", "cancelled"];
const COLUMNS = [
  ["Job", ""],
  ["Status", ""],
  ["Epoch", "n"],
  ["Accuracy", "n"],
  ["Samples/s", "n"],
  ["Last sign", "n"],
];

/** Show the jobs of one status, or with null all of them, in `place` until `signal` is aborted. */
export async function showJobs(place, status, { connection, signal }) {
  document.title = "preflight";
  const glance = h("section", { class: "glance", "aria-label": "Queue and workers" });
  const list = h("div", {}, h("p", { class: "loading", role: "status" }, "Asking for the jobs…"));
  const title = h("h1", { tabindex: "-1" }, "Jobs");
  const count = h("p", { class: "note" });
  fill(place, glance, h("div", { class: "list-head" }, title, count, filters(status)), list);

  const rows = new Map();
  await connection.keepAt(
    "jobs",
    async () => {
      const query = new URLSearchParams({ limit: MOST, ...(status ? { status } : {}) });
      const [overview, jobs] = await Promise.all([
        request("/v1/overview", { signal }),
        request(`/v1/jobs?${query}`, { signal }),
      ]);
      document.title = overview.running ? `${overview.running} running - preflight` : "preflight";
      showGlance(glance, overview);
      showList(list, jobs, rows, status);
      say(
        count,
        jobs.length < MOST
          ? `${number(jobs.length, 0)} in queue ${overview.queue}`
          : `the newest ${MOST} in queue ${overview.queue}`,
      );
    },
    { every: EVERY, signal },
  );
}

function filters(chosen) {
  const links = [null, ...STATUSES].map((status) =>
    h(
      "a",
      { href: status ? `#/?status=${status}` : "#/", "aria-current": status === chosen && "true" },
      status ?? "all",
    ),
  );
  return h("nav", { class: "filters", "aria-label": "Show jobs that are" }, links);
}

function showGlance(glance, { queue, depth, running, workers }) {
  const figures = [
    ["Waiting", depth],
    ["Running", running],
    ["Workers", workers.length],
  ];
  fill(
    glance,
    h(
      "div",
      { class: "counts" },
      figures.map(([name, count]) =>
        h("div", { class: "count" }, h("strong", {}, number(count, 0)), h("span", {}, name)),
      ),
    ),
    workers.length
      ? h("ul", { class: "workers" }, workers.map(workerItem))
      : h(
          "p",
          { class: "note" },
          "No worker listens to the queue ",
          h("code", {}, queue),
          ". Start one: ",
          h("code", {}, "preflight worker"),
        ),
  );
}

function workerItem({ name, state, job_id, hostname, silent_s }) {
  const silent = silent_s > 90; // RQ's workers give a sign of life about every minute
  return h(
    "li",
    {},
    h("span", { class: `dot ${job_id ? "busy" : "idle"}`, "aria-hidden": "true" }),
    h("span", { class: "worker" }, h("strong", {}, hostname ?? name), h("small", {}, name)),
    h(
      "span",
      { class: "doing" },
      job_id ? h("a", { href: jobAddress(job_id) }, job_id) : state === "suspended" ? state : "idle",
    ),
    silent && h("small", { class: "warn" }, `silent for ${number(silent_s, 0)} s`),
  );
}

function showList(list, jobs, rows, status) {
  if (!jobs.length) {
    rows.clear();
    if (!list.querySelector(".empty")) fill(list, status ? noneOf(status) : noJobs());
    return;
  }
  if (!list.querySelector("table")) fill(list, table());
  const shown = jobs.map((job) => {
    const row = rows.get(job.job_id) ?? newRow(job.job_id);
    row.show(job);
    return [job.job_id, row];
  });
  rows.clear();
  shown.forEach(([id, row]) => rows.set(id, row));
  arrange(
    list.querySelector("tbody"),
    shown.map(([, row]) => row.element),
  );
}

/** Return an empty table; with roles, because on a phone its style makes it no table. */
function table() {
  const heads = COLUMNS.map(([name, kind]) => h("th", { scope: "col", class: kind, role: "columnheader" }, name));
  return h(
    "table",
    { class: "jobs", role: "table", keydown: walk },
    h("caption", {}, "Jobs, the newest first"),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
    h("tbody", { role: "rowgroup" }),
  );
}

/** Let the arrow keys go from job to job. */
function walk(event) {
  const links = [...event.currentTarget.querySelectorAll("tbody a")];
  const at = links.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
  if (at < 0 || to === undefined || !links[to]) return;
  event.preventDefault();
  links[to].focus();
}

function newRow(id) {
  const [what, status, reason, epoch, accuracy, whose, rate, age] = [
    "small",
    "span",
    "small",
    "span",
    "span",
    "small",
    "span",
    "span",
  ].map((name) => h(name));
  const bar = h("progress", { max: "1", "aria-hidden": "true" });
  const cells = [
    h("th", { scope: "row", role: "rowheader" }, h("a", { href: jobAddress(id) }, id), what),
    h("td", { role: "cell" }, status, reason),
    h("td", { class: "n", role: "cell" }, epoch, bar),
    h("td", { class: "n", role: "cell" }, accuracy, whose),
    h("td", { class: "n", role: "cell" }, rate),
    h("td", { class: "n", role: "cell" }, age),
  ];
  COLUMNS.forEach(([name], index) => cells[index].setAttribute("data-label", name));
  const element = h("tr", { role: "row" }, cells);
  function show(job) {
    element.className = job.status;
    say(what, job.model && job.dataset ? `${job.model} on ${job.dataset}` : "");
    if (status.textContent !== job.status) fill(status, pill(job.status));
    say(reason, (job.reason ?? "").replaceAll("_", " "));
    say(epoch, job.epoch === undefined ? NONE : `${number(job.epoch, 0)} of ${number(job.epochs ?? job.epoch, 0)}`);
    bar.hidden = job.status !== "running" || !job.epochs;
    bar.value = job.epochs ? (job.epoch ?? 0) / job.epochs : 0;
    const share = job.test_accuracy ?? job.val_acc;
    say(accuracy, share === undefined ? NONE : percent(share));
    say(whose, share === undefined ? "" : job.test_accuracy === undefined ? "validation" : "test");
    say(rate, job.samples_per_s === undefined ? NONE : speed(job.samples_per_s));
    say(age, job.updated_at === undefined ? NONE : ago(job.updated_at));
    cells.forEach((cell) => cell.classList.toggle("none", cell.textContent === NONE));
  }
  return { element, show };
}

/** Return where a job is shown. */
function jobAddress(id) {
  return `#/jobs/${encodeURIComponent(id)}`;
}

function noneOf(status) {
  return h("div", { class: "empty" }, h("p", {}, `No job is ${status}. `, h("a", { href: "#/" }, "Show all jobs")));
}

function noJobs() {
  const job = '{"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn", "epochs": 3}';
  const command = [
    `curl ${location.origin}/v1/jobs`,
    ...(hasToken() ? ['-H "authorization: Bearer $PREFLIGHT_API_TOKEN"'] : []),
    "-H 'content-type: application/json'",
    `-d '${job}'`,
  ].join(" \\\n  ");
  const code = h("code", {}, command);
  return h(
    "div",
    { class: "empty" },
    h("h2", {}, "No jobs yet"),
    h("p", {}, "Whatever is put into the queue appears here by itself. For example:"),
    h("div", { class: "command" }, h("pre", { tabindex: "0" }, code), copyButton(command, code)),
    h("p", { class: "note" }, "Jobs and their results are kept for a week after their last sign of life."),
  );
}
