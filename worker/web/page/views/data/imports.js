// Imports that wait, run, or ended while this page was open.

import { Problem, request } from "../../lib/api.js";
import { fill, h, setText } from "../../lib/dom.js";
import { duration, number, sentence } from "../../lib/format.js";

/** Ids of the imports that this browser began, until they are hidden. */
const STORED = "preflight-imports";
const MOST = 20;
export const ENDED = ["finished", "refused", "cancelled"];
const TITLES = {
  "import": ({ name, file }) => `${name} from ${file}`,
  remove: ({ name }) => `Removing ${name}`,
  relabel: ({ name, file }) => `${file} of labels of ${name}`,
  erase: ({ name, options }) => `Deleting sample ${options.sample} of ${name}`,
  issues: ({ name }) => `Wrong labels of ${name}`,
};

/** The list of imports. */
export class ImportList {
  #signal;
  #onEnd;
  #shown = new Map(); // import id -> its state
  #readOnly = false;
  #error = h("p.bad", { role: "alert" });
  #list = h("div.imports", { role: "status" });
  #drawn = "";

  constructor({ signal, onEnd }) {
    this.#signal = signal;
    this.#onEnd = onEnd;
    this.element = h("div", this.#error, this.#list);
    for (const id of stored()) this.#askForEnd(id);
  }

  /** Add an import that was just accepted. */
  add(state) {
    this.#shown.set(state.import_id, state);
    remember(state.import_id);
    this.#draw();
  }

  /** Take the open imports; of those that are no longer open, ask for the end. */
  update(open, readOnly) {
    this.#readOnly = readOnly;
    const ids = new Set(open.map((state) => state.import_id));
    for (const state of open) this.#shown.set(state.import_id, state);
    for (const state of this.#shown.values())
      if (!ids.has(state.import_id) && !ENDED.includes(state.status)) this.#askForEnd(state.import_id);
    this.#draw();
  }

  async #askForEnd(id) {
    try {
      const state = await request(`v1/imports/${id}`, { signal: this.#signal });
      this.#shown.set(id, state);
      this.#draw();
      if (ENDED.includes(state.status)) this.#onEnd();
    } catch (problem) {
      if (problem instanceof Problem && !problem.isTransient) this.#hide(id);
    }
  }

  #draw() {
    const now = JSON.stringify([[...this.#shown.values()], this.#readOnly]);
    if (now === this.#drawn) return;
    this.#drawn = now;
    fill(this.#list, [...this.#shown.values()].map((state) => this.#item(state)));
  }

  #item(state) {
    const hasEnded = ENDED.includes(state.status);
    const name = TITLES[state.kind](state);
    const kind = state.status === "refused" ? ".bad" : "";
    const cancel = () => this.#cancel(state.import_id);
    const hide = () => this.#hide(state.import_id);
    return h(
      "section.panel.import",
      h("h3", name),
      h(`p${kind}`, wordsOf(state)),
      !hasEnded && state.total > 0 && h("progress", { max: state.total, value: state.read, "aria-label": name }),
      h(
        "div.buttons",
        !hasEnded && !this.#readOnly && h("button", { type: "button", click: cancel }, "Cancel"),
        state.version && h("a.button", { href: `#/data/${encodeURIComponent(state.version)}` }, state.kind === "issues" ? "Look at them" : "Look at it"),
        hasEnded && h("button", { type: "button", click: hide }, "Hide"),
      ),
    );
  }

  #hide(id) {
    this.#shown.delete(id);
    store(stored().filter((other) => other !== id));
    this.#draw();
  }

  async #cancel(id) {
    setText(this.#error, "");
    try {
      this.add(await request(`v1/imports/${id}/cancel`, { body: {} }));
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      setText(this.#error, problem.message);
    }
  }
}

/** Keep the id of an import, so that its end is shown. */
export function remember(id) {
  store([id, ...stored().filter((other) => other !== id)]);
}

function stored() {
  try {
    return JSON.parse(localStorage.getItem(STORED) ?? "[]").filter((id) => /^[0-9a-f]{16}$/.test(id));
  } catch {
    return [];
  }
}

function store(ids) {
  try {
    localStorage.setItem(STORED, JSON.stringify(ids.slice(0, MOST)));
  } catch {
    // a browser that keeps nothing: they are shown while the page is open
  }
}

/** What an import does, as a sentence. */
export function wordsOf({ kind, status, stage, read, refused, total, seconds_left: left, message, version }) {
  if (status === "finished" && version && kind !== "issues") return `${version} is ready: ${message}.`;
  if (status !== "running") return sentence(message);
  const of = total ? ` of ${number(total, 0)}` : "";
  const samples = read ? `: ${number(read, 0)}${of} ${kind === "issues" ? "steps" : "samples"}` : "";
  const bad = refused ? `, ${number(refused, 0)} refused` : "";
  const rest = left ? `, ${duration(left)} left` : "";
  return `${stage.slice(0, 1).toUpperCase()}${stage.slice(1)}${samples}${bad}${rest}.`;
}
