// What a job was run with, and what it leaves: its files, its model to try, and how that does on the test set.

import { h } from "../../lib/dom.js";
import { Configuration } from "./configuration.js";
import { showEvaluation } from "./evaluation.js";
import { Files } from "./files.js";
import { TryIt } from "./try_it.js";

/** The panels below the course of a job; each asks the service once the job has finished. */
export class Details {
  #path;
  #configuration = new Configuration();
  #files;
  #evaluation = h("section.panel", { hidden: true });
  #leaving = new AbortController();
  #isShown = false;
  #tryIt = null;

  constructor(path) {
    this.#path = path;
    this.#files = new Files(path, this.#leaving.signal, (found) => this.#show(found));
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

  #show({ files, predicts }) {
    if (predicts && !this.#tryIt) {
      this.#tryIt = new TryIt(this.#path, this.#leaving.signal);
      this.#files.element.after(this.#tryIt.element);
    }
    showEvaluation(this.#evaluation, this.#path, files, this.#leaving.signal);
  }
}
