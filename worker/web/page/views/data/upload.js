// Drop a file: it is sent with a progress bar, and imported under a name.

import { Problem, send } from "../../lib/api.js";
import { panel } from "../../lib/components.js";
import { h, setText } from "../../lib/dom.js";
import { gigabytes, percent } from "../../lib/format.js";

const NAME = "[a-z0-9][a-z0-9._\\-]{0,63}";
const ENDS = /(\.(tar|csv))?\.(zip|tar|gz|tgz|bz2|xz|parquet|npz|csv|tsv)$/i;

/** The panel that takes a file. */
export class UploadPanel {
  #signal;
  #onAccepted;
  #file = null;
  #most = Infinity;
  #status = h("p", { role: "status" }, "Drop a zip, tar, Parquet, npz or CSV file here, or choose one.");
  #error = h("p.bad", { role: "alert" });
  #bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Upload" });
  #name = h("input", { id: "upload-name", maxlength: 64, pattern: NAME, required: true, autocomplete: "off" });
  #size = h("input", { id: "upload-size", placeholder: "most frequent size, at most 64" });
  #test = h("input", { id: "upload-test", placeholder: "0.2" });
  #start = h("button.primary", { type: "submit" }, "Import");
  #stop = h("button", { type: "button" }, "Stop");
  #form;

  constructor({ signal, onAccepted }) {
    this.#signal = signal;
    this.#onAccepted = onAccepted;
    const file = h("input", { type: "file", hidden: true, change: () => this.#take(file.files[0]) });
    const choose = h("button", { type: "button", click: () => file.click() }, "Choose a file");
    const field = (input, label) => h("p.field", h("label", { for: input.id }, label), input);
    this.#form = h(
      "form.upload",
      { hidden: true, submit: (event) => this.#submit(event) },
      field(this.#name, "Name of the data set"),
      h(
        "details",
        h("summary", "Options"),
        field(this.#size, "Height and width, such as 28 or 32x48"),
        field(this.#test, "Share for the test"),
      ),
      h("div.buttons", this.#start),
    );
    this.#stop.hidden = true;
    const note = h(
      "p.note",
      "One folder for each class, or a table, as ",
      h("code", "preflight data add"),
      " takes them. Nothing in it is run.",
    );
    const parts = [this.#status, this.#error, this.#bar, this.#form, h("div.buttons", choose, this.#stop, file), note];
    this.element = panel("Add data", ...parts);
    this.element.classList.add("drop");
    for (const name of ["dragover", "dragleave", "drop"])
      this.element.addEventListener(name, (event) => this.#onDrag(event));
  }

  /** Take the bounds of the service. */
  setBounds({ most_upload_bytes: most }) {
    this.#most = most;
  }

  #onDrag(event) {
    event.preventDefault();
    this.element.classList.toggle("dropping", event.type === "dragover");
    if (event.type !== "drop") return;
    const [item] = event.dataTransfer.items;
    if (item?.webkitGetAsEntry?.()?.isDirectory) {
      setText(this.#error, "This is a folder. Pack it as a zip first, and drop that.");
    } else this.#take(event.dataTransfer.files[0]);
  }

  #take(file) {
    if (!file) return;
    setText(this.#error, "");
    if (file.size > this.#most) {
      setText(this.#error, `${file.name} has ${gigabytes(file.size)}, but an upload may have ${gigabytes(this.#most)}.`);
      return;
    }
    this.#file = file;
    setText(this.#status, `${file.name}, ${gigabytes(file.size)}`);
    this.#name.value = nameOf(file.name);
    this.#form.hidden = false;
    this.#name.focus();
  }

  async #submit(event) {
    event.preventDefault();
    const { name } = this.#file;
    const given = { file: name, size: this.#size.value.trim(), test: this.#test.value.trim() };
    const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value));
    const stopped = new AbortController();
    const stop = () => stopped.abort();
    this.#signal.addEventListener("abort", stop);
    this.#stop.onclick = stop;
    this.#sending(true);
    setText(this.#error, "");
    try {
      const path = `v1/datasets/${encodeURIComponent(this.#name.value)}?${query}`;
      const onProgress = (share) => {
        this.#bar.value = share;
        setText(this.#status, `${name}: ${percent(share, 0)} sent`);
      };
      const state = await send(path, this.#file, { signal: stopped.signal, onProgress });
      this.#form.hidden = true;
      setText(this.#status, `${name} was sent. A worker imports it; this page may be closed.`);
      this.#onAccepted(state);
    } catch (problem) {
      if (this.#signal.aborted) return;
      if (!(problem instanceof Problem)) throw problem;
      setText(this.#status, `${name} was not sent.`);
      setText(this.#error, problem.message);
    } finally {
      this.#sending(false);
      this.#signal.removeEventListener("abort", stop);
    }
  }

  #sending(isSending) {
    this.#bar.hidden = this.#stop.hidden = !isSending;
    this.#start.disabled = isSending;
  }
}

/** The name of a data set for a file: in small letters, without its ending. */
function nameOf(file) {
  const plain = file.replace(ENDS, "").toLowerCase().normalize("NFKD");
  return plain.replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+|-+$/g, "").slice(0, 64) || "photos";
}
