// What a job was run with, and what it leaves: its files, and how its model does on the test set.

import { h } from "../../lib/dom.js";
import { Configuration } from "./configuration.js";
import { showEvaluation } from "./evaluation.js";
import { Files } from "./files.js";

/** The panels below the course of a job; each asks the service once the job has finished. */
export class Details {
  #path;
  #configuration = new Configuration();
  #files;
  #evaluation = h("section.panel", { hidden: true });
  #leaving = new AbortController();
  #isShown = false;

  constructor(path) {
    this.#path = path;
    this.#files = new Files(path, this.#leaving.signal, (files) => this.#show(files));
    this.element = h("div.details", this.#configuration.element, this.#files.element, this.#evaluation);
  }

  draw(state) {
    this.#configuration.draw(state.config ?? []);
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
