// Labels that look wrong: a search that is asked for, and what it found, the most suspicious first.

import { Problem, request } from "../../lib/api.js";
import { panel } from "../../lib/components.js";
import { confirmDialog, fill, h, setText } from "../../lib/dom.js";
import { exactly, number, percent, pluralize, roughly } from "../../lib/format.js";
import { NOWHERE } from "./changes.js";
import { datasetPath } from "./data.js";
import { ENDED, wordsOf } from "./imports.js";
import { drawSamples, pictureOf } from "./pictures.js";

const PAGE = 60;
const LOOK_MS = 1000;

/** The panel of a version; `changes` is null where nothing may be changed, and `start` is whether a search may begin. */
export class IssuePanel {
  #dataset;
  #changes;
  #signal;
  #rows = h("ul.issues");
  #read = 0; // issues that were asked for
  #head = h("div.issue-head");
  #status = h("div", { role: "status" });
  #error = h("p.bad", { role: "alert" });
  #more = h("button", { type: "button", hidden: true, click: () => this.#load() }, `Show ${PAGE} more`);

  constructor(dataset, changes, { signal, mayStart }) {
    this.#dataset = dataset;
    this.#changes = changes;
    this.#signal = signal;
    this.mayStart = mayStart;
    this.element = panel("Labels that look wrong", this.#head, this.#status, this.#error, this.#rows, this.#more);
    this.#guard(async () => {
      await this.#load();
      if (mayStart) await this.#resume();
    });
  }

  async #load() {
    const first = this.#read;
    const query = new URLSearchParams({ first, count: PAGE });
    const { found, total, expected_seconds: cost } = await request(`${datasetPath(this.#dataset)}/issues?${query}`, {
      signal: this.#signal,
    });
    if (!first) this.#introduce(found, cost);
    if (!found) return;
    const { issues } = found;
    const rows = issues.filter(({ given, suggested }) => given !== suggested).map((issue) => this.#row(issue));
    this.#rows.append(...rows.map(({ element }) => element));
    this.#read += issues.length;
    this.#more.hidden = this.#read >= total || issues.at(-1).own > 0.5; // those behind look like their own class
    await drawSamples(this.#dataset, rows, this.#signal);
  }

  #introduce(found, cost) {
    const words = found
      ? `${number(found.estimated, 0)} of ${number(found.samples, 0)} labels look wrong, by a search of ${exactly(Date.parse(found.at) / 1000)}. The most suspicious come first.`
      : "Quick trainings, each without a part of the samples, judge that part: a label that they find improbable is shown here.";
    const button = this.mayStart && h("button", { type: "button", click: () => this.#start(cost) }, found ? "Look again" : "Look for wrong labels");
    fill(this.#head, h("p.note", words), button && h("div.buttons", button));
  }

  async #start(cost) {
    const parts = [
      h("p", `A worker trains a small network twice: ${roughly(cost)} with two idle processors, more while a job runs.`),
      h("p", "The measured time is shown once it runs. It can be cancelled, and nothing is changed."),
    ];
    if (!(await confirmDialog("Look for wrong labels?", parts, { yes: "Start", no: "Cancel" }))) return;
    await this.#guard(async () => this.#follow(await request(`${datasetPath(this.#dataset)}/issues`, { body: {} })));
  }

  /** Go on with a search that is open. */
  async #resume() {
    const { imports } = await request("v1/datasets", { signal: this.#signal });
    const open = imports.find(({ kind, name }) => kind === "issues" && name === this.#dataset);
    if (open) await this.#follow(open);
  }

  async #follow(state) {
    const path = `v1/imports/${state.import_id}`;
    const cancel = () => this.#guard(() => request(`${path}/cancel`, { body: {} }));
    const words = h("p");
    const bar = h("progress", { max: 1, value: 0, "aria-label": "Search for wrong labels" });
    fill(this.#status, words, bar, h("div.buttons", h("button", { type: "button", click: cancel }, "Cancel the search")));
    this.#head.hidden = true;
    while (!ENDED.includes(state.status)) {
      setText(words, wordsOf(state));
      bar.value = state.total ? state.read / state.total : 0;
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      state = await request(path, { signal: this.#signal });
    }
    this.#head.hidden = false;
    fill(this.#status, state.status === "finished" ? [] : h(`p${state.status === "refused" ? ".bad" : ""}`, wordsOf(state)));
    if (state.status !== "finished") return;
    fill(this.#rows);
    this.#read = 0;
    await this.#load();
  }

  #row({ sample, given, suggested, own, probability }) {
    const canvas = pictureOf(sample);
    const what = `In ${given} (${percent(own, 1)}), looks like ${suggested} (${percent(probability, 1)})`;
    const text = h("span", what);
    const element = h("li", canvas, text);
    if (this.#changes) {
      const button = (name, click) => h("button.quiet", { type: "button", "aria-label": `${name}: sample ${sample}`, click }, name);
      const set = (name) => this.#changes.set(sample, name, given);
      const buttons = h(
        "div.buttons",
        button(`Move to ${suggested}`, () => set(suggested)),
        button("Leave out", () => set(NOWHERE)),
        button("Other…", () => this.#changes.ask(sample, given)),
      );
      const undo = button("Undo", () => set(given));
      this.#changes.addEventListener("change", () => {
        const name = this.#changes.of(sample);
        buttons.hidden = name !== undefined;
        undo.hidden = name === undefined;
        setText(text, name === undefined ? what : name === NOWHERE ? "Left out" : `To ${name}`);
      });
      undo.hidden = true;
      element.append(buttons, undo);
    }
    return { sample, canvas, element };
  }

  async #guard(action) {
    setText(this.#error, "");
    try {
      await action();
    } catch (problem) {
      if (this.#signal.aborted) return;
      if (!(problem instanceof Problem)) throw problem;
      this.#head.hidden = false;
      fill(this.#status);
      setText(this.#error, problem.message);
    }
  }
}
