// The selected jobs of a list: compare them, or cancel those that are active.

import { Problem, request } from "../../lib/api.js";
import { isActive } from "../../lib/components.js";
import { confirmDialog, h, setText } from "../../lib/dom.js";
import { pluralize } from "../../lib/format.js";

/** Jobs in one comparison. */
const MAX_COMPARED = 5;

export class Selection {
  #jobs = new Map(); // id -> whether it is active
  #listed = new Map(); // the same of every job of the page
  #boxes = new Map(); // id -> checkbox
  #onCancel;
  #count = h("span");
  #compare = h("a.button", "Compare");
  #cancelButton = h("button", { type: "button", click: () => this.#cancel() }, "Cancel jobs…");
  #message = h("span", { role: "alert" });
  element = h(
    "div.selection",
    { role: "group", "aria-label": "Selected jobs", hidden: true },
    this.#count,
    this.#compare,
    this.#cancelButton,
    h("button.quiet", { type: "button", click: () => this.#clear() }, "Clear"),
    this.#message,
  );

  constructor(onCancel) {
    this.#onCancel = onCancel;
  }

  /** Return the checkbox of a job. */
  box(id) {
    const change = () => {
      if (box.checked) this.#jobs.set(id, this.#listed.get(id) ?? false);
      else this.#jobs.delete(id);
      setText(this.#message, "");
      this.#draw();
    };
    const box = h("input.tick", { type: "checkbox", "aria-label": `Select ${id}`, change });
    box.checked = this.#jobs.has(id);
    this.#boxes.set(id, box);
    return box;
  }

  /** Learn which jobs are active. */
  show(jobs, readOnly) {
    this.#listed = new Map(jobs.map((job) => [job.job_id, isActive(job)]));
    for (const [id, active] of this.#listed) if (this.#jobs.has(id)) this.#jobs.set(id, active);
    this.readOnly = readOnly;
    this.#draw();
  }

  #draw() {
    const ids = [...this.#jobs.keys()];
    this.element.hidden = !ids.length && !this.#message.textContent;
    setText(this.#count, `${pluralize(ids.length, "job")} selected`);
    const fits = ids.length >= 2 && ids.length <= MAX_COMPARED;
    const query = new URLSearchParams(ids.map((id) => ["job", id]));
    if (fits) this.#compare.setAttribute("href", `#/compare?${query}`);
    else this.#compare.removeAttribute("href");
    setText(this.#compare, fits ? "Compare" : `Compare 2 to ${MAX_COMPARED}`);
    this.#cancelButton.hidden = this.readOnly || !this.#active().length;
  }

  #active() {
    return [...this.#jobs].filter(([, active]) => active).map(([id]) => id);
  }

  #clear() {
    this.#boxes.forEach((box) => (box.checked = false));
    this.#jobs.clear();
    setText(this.#message, "");
    this.#draw();
  }

  async #cancel() {
    const ids = this.#active();
    const list = h("ul.ids", { tabindex: "0" }, ids.map((id) => h("li", h("code", id))));
    const parts = [h("p", "Waiting ones leave the queue; running ones stop within a step and keep their checkpoints."), list];
    const title = `Cancel ${pluralize(ids.length, "job")}?`;
    if (!(await confirmDialog(title, parts, { yes: "Cancel the jobs", no: "Keep them", danger: true }))) return;
    try {
      const { cancelled, refused } = await request("v1/cancel", { body: { job_ids: ids } });
      this.#clear();
      const left = refused.length ? `; ${refused[0].message}${refused.length > 1 ? " (and others)" : ""}` : "";
      setText(this.#message, `${pluralize(cancelled.length, "job")} cancelled${left}`);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      setText(this.#message, problem.message);
    }
    this.#draw();
    this.#onCancel();
  }
}
