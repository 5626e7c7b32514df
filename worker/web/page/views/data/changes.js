// Samples that are given another class, left out or deleted: asked for in dialogs, saved as one new version.

import { Problem, request } from "../../lib/api.js";
import { confirmDialog, h, setText } from "../../lib/dom.js";
import { number, pluralize } from "../../lib/format.js";
import { datasetPath } from "./data.js";
import { remember } from "./imports.js";
import { drawSamples, pictureOf } from "./pictures.js";

/** Stands for "none" in the choice of a class. */
export const NOWHERE = "";
const NAME = "preflight-name";

/** The changes to one version that are not saved yet. */
export class Changes extends EventTarget {
  #newest;
  #classes;
  #pending = new Map(); // number of a sample -> its class, NOWHERE: it is left out
  #error = h("p.bad", { role: "alert" });
  #by = h("input", { id: "changed-by", maxlength: 200, autocomplete: "name", value: stored() });
  #save = h("button.primary", { type: "button", click: () => this.#send() });

  constructor(newest, classes) {
    super();
    this.#newest = newest;
    this.#classes = classes;
    const field = h("p.field", h("label", { for: "changed-by" }, "Your name, for the history"), this.#by);
    const undo = h("button", { type: "button", click: () => this.#undo() }, "Undo all");
    this.element = h("section.panel.changes", { hidden: true, "aria-label": "Changes" }, field, h("div.buttons", this.#save, undo));
    this.error = this.#error;
  }

  /** The class that a sample is about to get; undefined: it stays. */
  of(sample) {
    return this.#pending.get(sample);
  }

  /** Give a sample of class `own` another class. */
  set(sample, name, own) {
    if (name === own) this.#pending.delete(sample);
    else this.#pending.set(sample, name);
    this.#tell();
  }

  #undo() {
    this.#pending.clear();
    this.#tell();
  }

  #tell() {
    this.element.hidden = !this.#pending.size;
    setText(this.#save, `Save ${pluralize(this.#pending.size, "change")} as a new version`);
    this.dispatchEvent(new Event("change"));
  }

  /** Ask what a sample is: it moves to another class, is left out, or is deleted. */
  async ask(sample, known) {
    setText(this.#error, "");
    await this.#try(() => this.#ask(sample, known));
  }

  async #ask(sample, known) {
    const { dataset } = this.#newest;
    const own = known ?? (await request(`${datasetPath(dataset)}/samples/${sample}`)).label;
    const canvas = pictureOf(sample);
    drawSamples(dataset, [{ sample, canvas }]).catch(() => canvas.remove()); // the question is clear without it
    const names = this.#classes.map(({ name }) => h("option", { value: name, selected: name === own }, name));
    const select = h("select", { id: "new-class" }, names, h("option", { value: NOWHERE }, "none: leave it out"));
    let isDeletion = false;
    const erase = h("button.quiet", { type: "button" }, "Delete the picture…");
    erase.addEventListener("click", () => {
      isDeletion = true;
      erase.closest("dialog").close();
    });
    const parts = [h("p", `Sample ${number(sample, 0)} is in ${own}.`), canvas, h("label", { for: "new-class" }, "Class"), select, erase];
    if (await confirmDialog("What is it?", parts, { yes: "Change", no: "Cancel" })) this.set(sample, select.value, own);
    else if (isDeletion) await this.#erase(sample);
  }

  /** Say what refers to a sample, ask, and have a worker delete it. */
  async #erase(sample) {
    const path = `${datasetPath(this.#newest.dataset)}/samples/${sample}`;
    const use = await request(path);
    const lines = referring(use).map((text) => h("li", text));
    const parts = [
      h("p", `Sample ${number(sample, 0)}, ${use.label}, is in ${use.versions.join(", ")}. It leaves all of them, and `,
        "does not come back when it is imported again. This cannot be undone."),
      lines.length > 0 && h("ul", lines),
    ].filter(Boolean);
    if (!(await confirmDialog("Delete this picture?", parts, { yes: "Delete", no: "Cancel", danger: true }))) return;
    const query = new URLSearchParams({ sha256: use.sha256, by: this.#name() });
    this.#leave(await request(`${path}?${query}`, { method: "DELETE" }));
  }

  async #send() {
    const changes = Object.fromEntries([...this.#pending].map(([sample, name]) => [sample, name || null]));
    this.#save.disabled = true;
    const path = `${datasetPath(this.#newest.dataset)}/relabel`;
    await this.#try(async () => this.#leave(await request(path, { body: { changes, by: this.#name() } })));
    this.#save.disabled = false;
  }

  async #try(action) {
    try {
      await action();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      setText(this.#error, problem.message);
      this.#error.scrollIntoView({ block: "nearest" });
    }
  }

  /** A worker does it: the list of data sets says how far it is. */
  #leave({ import_id: id }) {
    remember(id);
    location.hash = "#/data";
  }

  #name() {
    const name = this.#by.value.trim();
    try {
      localStorage.setItem(NAME, name);
    } catch {
      // a browser that keeps nothing
    }
    return name || "somebody on the page";
  }
}

/** What refers to a sample, as sentences. */
function referring({ active, active_jobs: jobs, trained, trained_jobs: models, aliases, elsewhere }) {
  const named = (names, count) => `${names.join(", ")}${count > names.length ? ", …" : ""}`;
  return [
    (active ?? trained) === null && "Which jobs use it is not known: Redis does not answer.",
    active && `${pluralize(active, "job")} on a version with this picture ${active === 1 ? "waits or runs" : "wait or run"}: ${named(jobs, active)}. A running job uses it until it ends.`,
    trained && `${pluralize(trained, "finished job")} trained on such a version: ${named(models, trained)}. The models keep what they have learned.`,
    aliases.length && `Models with a name that were trained on such a version: ${aliases.join(", ")}.`,
    elsewhere.length && `Other data sets have the same picture, and keep it: ${elsewhere.join(", ")}.`,
  ].filter(Boolean);
}

function stored() {
  try {
    return localStorage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}
