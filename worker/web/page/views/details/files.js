// Files of a finished model: the report to open, the others to download.

import { addressOf, request } from "../../lib/api.js";
import { panel } from "../../lib/components.js";
import { fill, h, setText } from "../../lib/dom.js";
import { number, pluralize, sentence } from "../../lib/format.js";

const REPORT = "report.html";
/** File -> what it is. */
const KINDS = {
  [REPORT]: "The report: curves, errors, calibration",
  "model.safetensors": "Weights, for PyTorch and other readers of safetensors",
  "model.onnx": "The model as ONNX",
  "predictions.safetensors": "Probabilities and labels of the test set",
  "evaluation.json": "Confusion matrix and most confident errors",
  "manifest.json": "Specification, metrics and checksums",
  "trace.json.gz": "Trace of a few steps, for Perfetto",
};

/** The list of files; `onListed` gets it. */
export class Files {
  #path;
  #signal;
  #onListed;
  #body = h("div");
  #shown = "";
  #error = h("p.bad", { role: "alert" });
  element = panel("Files", this.#body, this.#error);

  constructor(path, signal, onListed) {
    this.#path = path;
    this.#signal = signal;
    this.#onListed = onListed;
    this.element.hidden = true;
  }

  async load() {
    this.element.hidden = false;
    if (!this.#body.children.length) fill(this.#body, h("p.note", { role: "status" }, "Loading files…"));
    const found = await this.#list();
    if (!found) {
      const again = h("button", { type: "button", click: () => this.load() }, "Look again");
      this.#shown = "";
      if (!this.#signal.aborted) fill(this.#body, again);
      return;
    }
    const { files, message } = found;
    const now = JSON.stringify([message, files.map(({ name, bytes }) => [name, bytes])]);
    if (now === this.#shown) return;
    this.#shown = now;
    const known = Object.keys(KINDS).flatMap((name) => files.filter((file) => file.name === name));
    fill(this.#body, files.length ? h("ul.files", known.map((file) => this.#row(file))) : h("p", sentence(message)));
    this.#onListed(found);
  }

  #row({ name, bytes }) {
    const opens = name === REPORT;
    const label = opens ? "Open" : "Download";
    const listener = () => this.#take(name, opens);
    const button = h("button", { type: "button", click: listener, "aria-label": `${label} ${name}` }, label);
    return h("li", h("div", h("code", name), h("small", `${KINDS[name]}, ${size(bytes)}`)), button);
  }

  /** Open or download a file: its address is asked for anew, since it serves for a minute. */
  async #take(name, opens) {
    const found = await this.#list();
    const file = found?.files.find((one) => one.name === name);
    if (found && !file) setText(this.#error, sentence(found.message ?? `${name} is not there any more`));
    if (!file) return;
    const target = opens ? { target: "_blank", rel: "noopener noreferrer" } : { download: name };
    const { search: ticket } = new URL(file.href, document.baseURI); // its path may lack what a proxy puts before it
    h("a", { href: addressOf(`${this.#path}/files/${name}`) + ticket, ...target }).click();
  }

  async #list() {
    setText(this.#error, "");
    try {
      return await request(`${this.#path}/files`, { signal: this.#signal });
    } catch (problem) {
      if (!this.#signal.aborted) setText(this.#error, problem.message);
      return null;
    }
  }
}

function size(bytes) {
  if (bytes < 1024) return pluralize(bytes, "byte");
  return bytes < 2 ** 20 ? `${number(bytes / 1024)} KiB` : `${number(bytes / 2 ** 20)} MiB`;
}
