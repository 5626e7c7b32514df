// All jobs: queue and workers at a glance, the search, and the list in pages.

import { Problem, addressOf, request } from "../../lib/api.js";
import { STATUSES, loading } from "../../lib/components.js";
import { copyButton, fill, h, setText } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { token } from "../../lib/token.js";
import { showOverview } from "./overview.js";
import { PAGE_SIZE, listAddress, readQuery, searchPath } from "./query.js";
import { SearchBox } from "./search.js";
import { Selection } from "./selection.js";
import { JobTable } from "./table.js";

const POLL_INTERVAL_MS = 2000;

/** Show the jobs of the query `given` in `place` until `signal` is aborted. */
export async function showJobs(place, given, { connection, signal }) {
  const view = new ListView(readQuery(given), () => connection.retryNow());
  document.title = "preflight";
  fill(place, h("h1", { tabindex: "-1" }, "Jobs"), loading("Loading jobs…"));
  await connection.poll("jobs", refresh, { every: POLL_INTERVAL_MS, signal });

  async function refresh() {
    await view.refresh(signal);
    if (view.isShown) return;
    // Drawn in one go: drawn in pieces, it would move below a reader.
    const hadFocus = place.contains(document.activeElement);
    fill(place, view.elements);
    if (hadFocus) place.querySelector("h1").focus();
  }
}

class ListView {
  #query;
  #version = 0; // of the query: an answer to an older one is not shown
  #refreshNow;
  #glance = h("section.glance", { "aria-label": "Queue and workers" });
  #count = h("p.note", { role: "status" });
  #filters = h("nav.filters", { "aria-label": "Filter by status" });
  #list = h("div");
  #pages = h("nav.pages", { "aria-label": "Pages", hidden: true });
  #start = h("a.button", { href: "#/new", hidden: true }, "Start a job");
  #table = null;
  #selection;
  #search;

  constructor(query, refreshNow) {
    this.#query = query;
    this.#refreshNow = refreshNow;
    this.#selection = new Selection(refreshNow);
    this.#search = new SearchBox(query, (change) => this.#change(change));
    const head = h("div.list-head", h("h1", { tabindex: "-1" }, "Jobs"), this.#count, this.#start, this.#filters);
    this.elements = [this.#glance, head, this.#search.element, this.#list, this.#selection.element, this.#pages];
  }

  get isShown() {
    return this.#list.isConnected;
  }

  /** Ask the service and show its answer; again where the query has changed meanwhile. */
  async refresh(signal) {
    let asked;
    do {
      asked = this.#version;
      const [overview, found] = await Promise.all([request("v1/overview", { signal }), this.#found(signal)]);
      if (asked === this.#version) this.#show(overview, found);
    } while (asked !== this.#version);
  }

  async #found(signal) {
    try {
      return await request(searchPath(this.#query), { signal });
    } catch (problem) {
      if (!(problem instanceof Problem && problem.status === 422)) throw problem;
      return problem; // of the search: the sentence stands beside it
    }
  }

  #change(fields) {
    Object.assign(this.#query, { page: 1 }, fields);
    this.#version += 1;
    history.replaceState(null, "", listAddress(this.#query));
    this.#refreshNow();
  }

  #show(overview, found) {
    const problem = found instanceof Problem ? found.message : "";
    this.#search.showProblem(problem);
    if (problem) return;
    const { jobs, counts, matching, complete } = found;
    document.title = counts.running ? `${counts.running} running - preflight` : "preflight";
    showOverview(this.#glance, overview, counts);
    this.#start.hidden = overview.read_only;
    this.#selection.show(jobs, overview.read_only);
    this.#showFilters(matching);
    const { status, page } = this.#query;
    const total = status ? (matching[status] ?? 0) : sum(matching);
    this.#showList(jobs, sum(counts), total);
    const first = (page - 1) * PAGE_SIZE;
    const range = total > PAGE_SIZE ? `${number(first + 1, 0)} to ${number(first + jobs.length, 0)} of ` : "";
    const reading = complete ? "" : "; the service is still reading the others";
    setText(this.#count, `${range}${number(total, 0)} in queue ${overview.queue}${reading}`);
    this.#showPages(total);
    this.#search.showLimit(found.most);
  }

  #showFilters(matching) {
    const links = ["", ...STATUSES].map((status) => {
      const count = status ? (matching[status] ?? 0) : sum(matching);
      const href = listAddress({ ...this.#query, status, page: 1 });
      const current = status === this.#query.status && "true";
      return h("a", { href, "aria-current": current }, status || "all", h("small", number(count, 0)));
    });
    if (this.#filters.contains(document.activeElement)) return; // a reader is there
    fill(this.#filters, links);
  }

  #showList(jobs, all, total) {
    const { q, status } = this.#query;
    if (jobs.length) {
      if (!this.#table) fill(this.#list, (this.#table = this.#newTable()).element);
      this.#table.show(jobs, this.#query.sort);
      return;
    }
    this.#table = null;
    const empty = !all ? noJobs(this.#start.hidden) : q || total ? noMatch() : noJobsWith(status);
    if (this.#list.textContent !== empty.textContent) fill(this.#list, empty);
  }

  #newTable() {
    return new JobTable({ selection: this.#selection, onSort: (sort) => this.#change({ sort }) });
  }

  #showPages(total) {
    const { page } = this.#query;
    const last = Math.max(1, Math.ceil(total / PAGE_SIZE));
    this.#pages.hidden = last === 1 && page === 1;
    const turn = (to) => () => this.#change({ page: to });
    const button = (name, to, usable) => h("button", { type: "button", disabled: !usable, click: turn(to) }, name);
    const focused = [...this.#pages.children].indexOf(document.activeElement);
    fill(
      this.#pages,
      button("First", 1, page > 1),
      button("Back", page - 1, page > 1),
      h("span", `Page ${number(page, 0)} of ${number(last, 0)}`),
      button("Next", page + 1, page < last),
      button("Last", last, page < last),
    );
    this.#pages.children[focused]?.focus();
  }
}

function sum(counts) {
  return Object.values(counts).reduce((total, count) => total + count, 0);
}

function noJobsWith(status) {
  return h("div.empty", h("p", `No job is ${status || "here"}. `, h("a", { href: "#/" }, "Show all jobs")));
}

function noMatch() {
  return h("div.empty", h("p", "No job matches. ", h("a", { href: "#/" }, "Show all jobs")));
}

function noJobs(readOnly) {
  const begin = ["To begin, ", h("a", { href: "#/new" }, "start one"), ", ", h("a", { href: "#/data" }, "bring your own pictures"), ", or send one:"];
  const job = '{"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn", "epochs": 3}';
  const command = [
    `curl ${addressOf("v1/jobs")}`,
    ...(token() ? ['-H "authorization: Bearer $PREFLIGHT_API_TOKEN"'] : []),
    "-H 'content-type: application/json'",
    `-d '${job}'`,
  ].join(" \\\n  ");
  const code = h("code", command);
  return h(
    "div.empty",
    h("h2", "No jobs yet"),
    h("p", "New jobs appear here automatically. ", ...(readOnly ? [] : begin)),
    readOnly ? null : h("div.command", h("pre", { tabindex: "0" }, code), copyButton(command, code)),
    h("p.note", "Jobs and their results are kept for a week after their last update."),
  );
}
