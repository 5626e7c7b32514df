// What a job was run with, and what it leaves: its files, its model to try, and how that does on the test set.

import { download } from "../../lib/api.js";
import { h } from "../../lib/dom.js";
import { Configuration } from "./configuration.js";
import { showEvaluation } from "./evaluation.js";
import { Files } from "./files.js";
import { TryIt } from "./try_it.js";

/** Events after which a job has more files. */
const EXTRAS = ["onnx_ready", "report_ready", "artifact_uploaded"];

/** The panels below the course of a job; each asks the service once the job has finished. */
export class Details {
  #path;
  #configuration = new Configuration();
  #files;
  #evaluation = h("section.panel", { hidden: true });
  #leaving = new AbortController();
  #listed = null; // the events after which the files were listed last
  #isEvaluated = false;
  #tryIt = null;

  constructor(path) {
    this.#path = path;
    this.#files = new Files(path, this.#leaving.signal, (found) => this.#show(found));
    this.element = h("div.details", this.#configuration.element, this.#files.element, this.#evaluation);
  }

  /** Redraw; report and ONNX file follow the end of a job, each with an event in `latest`. */
  draw(state, latest) {
    this.#configuration.draw(state.config ?? []);
    const seen = EXTRAS.map((type) => latest[type]?.seq ?? "").join();
    if (state.status !== "finished" || this.#listed === seen) return;
    this.#listed = seen;
    this.#files.load();
  }

  close() {
    this.#leaving.abort();
  }

  async #offerTrial() {
    const { signal } = this.#leaving;
    const manifest = await download(`${this.#path}/files/manifest.json`, { signal }).then(JSON.parse).catch(() => ({}));
    this.#tryIt.replaceWith(new TryIt(this.#path, signal, manifest.input?.shape).element);
  }

  #show({ files, predicts }) {
    if (predicts && !this.#tryIt) {
      this.#tryIt = h("div");
      this.#files.element.after(this.#tryIt);
      this.#offerTrial();
    }
    if (!this.#isEvaluated && files.length) {
      this.#isEvaluated = true;
      showEvaluation(this.#evaluation, this.#path, files, this.#leaving.signal);
    }
  }
}
