// The table of jobs.

import { jobAddress, shareDone, statusBadge } from "../lib/components.js";
import { fill, h, reorder, setText } from "../lib/dom.js";
import { NONE, age, number, percent, speed, waitsFor, words } from "../lib/format.js";

const COLUMNS = ["Job", "Status", "Epoch", "Accuracy", "Samples/s", "Updated"];
const FIRST_NUMBER = 2; // the columns from this one on are numbers

/** Rows are kept from one update to the next; roles, because the style for phones makes it no table. */
export class JobTable {
  #rows = new Map(); // job id -> row
  #body = h("tbody", { role: "rowgroup" });

  constructor() {
    const heads = COLUMNS.map((name, index) =>
      h(index < FIRST_NUMBER ? "th" : "th.n", { scope: "col", role: "columnheader" }, name),
    );
    this.element = h(
      "table.jobs",
      { role: "table", keydown: moveFocus },
      h("caption", "Jobs, newest first"),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
      this.#body,
    );
  }

  show(jobs) {
    const rows = jobs.map((job) => [job.job_id, this.#rows.get(job.job_id) ?? new Row(job.job_id)]);
    this.#rows = new Map(rows);
    jobs.forEach((job) => this.#rows.get(job.job_id).show(job));
    reorder(
      this.#body,
      rows.map(([, row]) => row.element),
    );
  }
}

class Row {
  #model = h("small");
  #status = h("span");
  #reason = h("small");
  #epoch = h("span");
  #bar = h("progress", { max: "1", "aria-hidden": "true" });
  #accuracy = h("span");
  #samples = h("small");
  #speed = h("span");
  #updated = h("span");

  constructor(id) {
    const cell = (...children) => h("td", { role: "cell" }, ...children);
    const figure = (...children) => h("td.n", { role: "cell" }, ...children);
    this.cells = [
      h("th", { scope: "row", role: "rowheader" }, h("a", { href: jobAddress(id) }, id), this.#model),
      cell(this.#status, this.#reason),
      figure(this.#epoch, this.#bar),
      figure(this.#accuracy, this.#samples),
      figure(this.#speed),
      figure(this.#updated),
    ];
    COLUMNS.forEach((name, index) => this.cells[index].setAttribute("data-label", name));
    this.element = h("tr", { role: "row" }, this.cells);
  }

  show(job) {
    this.element.className = job.status;
    setText(this.#model, job.model && job.dataset ? `${job.model} on ${job.dataset}` : "");
    if (this.#status.textContent !== job.status) fill(this.#status, statusBadge(job.status));
    setText(this.#reason, words(job.reason ?? waitsFor(job)));
    const [epoch, epochs] = [job.epoch, job.epochs ?? job.epoch];
    setText(this.#epoch, epoch === undefined ? NONE : `${number(epoch, 0)} of ${number(epochs, 0)}`);
    this.#bar.hidden = job.status !== "running" || !job.epochs;
    this.#bar.value = shareDone(job);
    const accuracy = job.test_accuracy ?? job.val_acc;
    setText(this.#accuracy, accuracy === undefined ? NONE : percent(accuracy));
    setText(this.#samples, accuracy === undefined ? "" : job.test_accuracy === undefined ? "validation" : "test");
    setText(this.#speed, job.samples_per_s === undefined ? NONE : speed(job.samples_per_s));
    setText(this.#updated, job.updated_at === undefined ? NONE : age(job.updated_at));
    this.cells.forEach((cell) => cell.classList.toggle("none", cell.textContent === NONE));
  }
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
