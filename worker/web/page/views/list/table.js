// The table of jobs.

import { jobAddress, shareDone, statusBadge } from "../../lib/components.js";
import { fill, h, reorder, setText } from "../../lib/dom.js";
import { NONE, age, duration, exactly, number, percent, pluralize, speed, waitsFor, words } from "../../lib/format.js";
import { SORTS } from "./query.js";

const FIRST_NUMBER = 2; // the columns from this one on are numbers
/** Columns that are sorted from the highest value on at first. */
const HIGHEST_FIRST = new Set(["accuracy", "speed", "started", "updated"]);

/** Rows are kept from one update to the next; roles, because the style for phones makes it no table. */
export class JobTable {
  #rows = new Map(); // job id -> row
  #body = h("tbody", { role: "rowgroup" });
  #selection;
  #heads;

  constructor({ selection, onSort }) {
    this.#selection = selection;
    this.#heads = Object.entries(SORTS).map(([field, name], index) => {
      const click = () => onSort(nextSort(field, this.sort));
      const button = h("button.sort", { type: "button", click }, name);
      return h(index < FIRST_NUMBER ? "th" : "th.n", { scope: "col", role: "columnheader" }, button);
    });
    const selected = h("th.pick", { scope: "col", role: "columnheader" }, h("span.hidden", "Select"));
    this.element = h(
      "table.jobs",
      { role: "table", keydown: moveFocus },
      h("caption", "Jobs"),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, selected, this.#heads)),
      this.#body,
    );
  }

  show(jobs, sort) {
    this.sort = sort;
    Object.keys(SORTS).forEach((field, index) => {
      const order = sort === field ? "ascending" : sort === `-${field}` ? "descending" : "none";
      this.#heads[index].setAttribute("aria-sort", order);
    });
    const rows = jobs.map(({ job_id: id }) => [id, this.#rows.get(id) ?? new Row(id, this.#selection.box(id))]);
    this.#rows = new Map(rows);
    jobs.forEach((job) => this.#rows.get(job.job_id).show(job));
    reorder(
      this.#body,
      rows.map(([, row]) => row.element),
    );
  }
}

/** Return the order after a click on a column: one direction, the other, none. */
function nextSort(field, sort) {
  const [first, second] = HIGHEST_FIRST.has(field) ? [`-${field}`, field] : [field, `-${field}`];
  return { [first]: second, [second]: "" }[sort] ?? first;
}

class Row {
  #model = h("small");
  #tags = h("small.tags");
  #status = h("span");
  #reason = h("small");
  #epoch = h("span");
  #bar = h("progress", { max: "1", "aria-hidden": "true" });
  #accuracy = h("span");
  #samples = h("small");
  #speed = h("span");
  #started = h("span");
  #took = h("span");
  #updated = h("span");

  constructor(id, box) {
    const cell = (...children) => h("td", { role: "cell" }, ...children);
    const figure = (...children) => h("td.n", { role: "cell" }, ...children);
    this.cells = [
      h("th", { scope: "row", role: "rowheader" }, h("a", { href: jobAddress(id) }, id), this.#model, this.#tags),
      cell(this.#status, this.#reason),
      figure(this.#epoch, this.#bar),
      figure(this.#accuracy, this.#samples),
      figure(this.#speed),
      figure(this.#started),
      figure(this.#took),
      figure(this.#updated),
    ];
    Object.values(SORTS).forEach((name, index) => this.cells[index].setAttribute("data-label", name));
    this.element = h("tr", { role: "row" }, h("td.pick", { role: "cell" }, box), this.cells);
  }

  show(job) {
    this.element.className = job.status;
    const workers = job.workers > 1 ? `, ${pluralize(job.workers, "worker")}` : "";
    setText(this.#model, job.model && job.dataset ? `${job.model} on ${job.dataset}${workers}` : "");
    setText(this.#tags, (job.tags ?? []).join(" · "));
    this.#tags.title = job.note ?? "";
    if (this.#status.textContent !== job.status) fill(this.#status, statusBadge(job.status));
    setText(this.#reason, reasonOf(job));
    const [epoch, epochs] = [job.epoch, job.epochs ?? job.epoch];
    setText(this.#epoch, epoch === undefined ? NONE : `${number(epoch, 0)} of ${number(epochs, 0)}`);
    this.#bar.hidden = job.status !== "running" || !job.epochs;
    this.#bar.value = shareDone(job);
    const accuracy = job.test_accuracy ?? job.val_acc;
    setText(this.#accuracy, accuracy === undefined ? NONE : percent(accuracy));
    setText(this.#samples, accuracy === undefined ? "" : job.test_accuracy === undefined ? "validation" : "test");
    setText(this.#speed, job.samples_per_s === undefined ? NONE : speed(job.samples_per_s));
    setAge(this.#started, job.started_at);
    setText(this.#took, tookOf(job));
    setAge(this.#updated, job.updated_at);
    this.cells.forEach((cell) => cell.classList.toggle("none", cell.textContent === NONE));
  }
}

/** Show how long ago something was, and with the pointer on it when. */
function setAge(element, ts) {
  setText(element, ts === undefined ? NONE : age(ts));
  element.title = ts === undefined ? "" : exactly(ts);
}

function reasonOf(job) {
  const before = { undefined: "", 0: "next in the queue" }[job.position] ?? `${number(job.position, 0)} before it`;
  return job.status === "queued" ? waitsFor(job) || before : words(job.reason ?? "");
}

function tookOf({ status, started_at: started, updated_at: updated }) {
  if (started === undefined || status === "queued") return NONE;
  return duration(Math.max(0, (status === "running" ? Date.now() / 1000 : updated) - started));
}

/** Move the focus between jobs with the arrow keys. */
function moveFocus(event) {
  const links = [...event.currentTarget.querySelectorAll("tbody a")];
  const at = links.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: links.length - 1 }[event.key];
  if (at < 0 || to === undefined || !links[to]) return;
  event.preventDefault();
  links[to].focus();
}
