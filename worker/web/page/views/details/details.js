// What a finished job leaves: its files, and how its model does on the test set.

import { h } from "../../lib/dom.js";
import { showEvaluation } from "./evaluation.js";
import { Files } from "./files.js";

/** The panels below the course of a job; each asks the service once the job has finished. */
export class Details {
  #path;
  #files;
  #evaluation = h("section.panel", { hidden: true });
  #leaving = new AbortController();
  #isShown = false;

  constructor(path) {
    this.#path = path;
    this.#files = new Files(path, this.#leaving.signal, (files) => this.#show(files));
    this.element = h("div.details", this.#files.element, this.#evaluation);
  }

  draw(state) {
    if (state.status !== "finished" || this.#isShown) return;
    this.#isShown = true;
    this.#files.load();
  }

  close() {
    this.#leaving.abort();
  }

  #show(files) {
    showEvaluation(this.#evaluation, this.#path, files, this.#leaving.signal);
  }
}
