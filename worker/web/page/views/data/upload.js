// Drop a file: it is sent with a progress bar, and imported under a name.

import { Problem, send } from "../../lib/api.js";
import { panel } from "../../lib/components.js";
import { h, setText } from "../../lib/dom.js";
import { gigabytes, percent } from "../../lib/format.js";

const NAME = "[a-z0-9][a-z0-9._\\-]{0,63}";
const NAME_WORDS = "Small letters, digits, dots, dashes and underscores, a letter or digit first";
const HINT = "Drop a zip here that has one folder of pictures for each class, or choose a file.";
const ENDS = /(\.(tar|csv))?\.(zip|tar|gz|tgz|bz2|xz|parquet|npz|csv|tsv)$/i;

/** The panel that takes a file. */
export class UploadPanel {
  #signal;
  #onAccepted;
  #file = null;
  #most = Infinity;
  #status = h("p", { role: "status" }, HINT);
  #error = h("p.bad", { role: "alert" });
  #bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Upload" });
  #name = h("input", { id: "upload-name", maxlength: 64, pattern: NAME, required: true, autocomplete: "off", title: NAME_WORDS });
  #size = h("input", { id: "upload-size", placeholder: "most frequent size, at most 64" });
  #test = h("input", { id: "upload-test", placeholder: "0.2" });
  #refused = h("input", { id: "upload-refused", placeholder: "0.01" });
  #start = h("button.primary", { type: "submit", hidden: true, form: "upload" }, "Import");
  #stop = h("button", { type: "button", hidden: true }, "Stop");
  #choose = h("button", { type: "button" }, "Choose a file");
  #form;

  constructor({ signal, onAccepted }) {
    this.#signal = signal;
    this.#onAccepted = onAccepted;
    const file = h("input", { type: "file", hidden: true, change: () => this.#take(file.files[0]) });
    this.#choose.addEventListener("click", () => file.click());
    const field = (input, label) => h("p.field", h("label", { for: input.id }, label), input);
    this.#form = h(
      "form.upload",
      { id: "upload", hidden: true, submit: (event) => this.#submit(event) },
      field(this.#name, "Name of the data set"),
      h(
        "details",
        h("summary", "Options"),
        field(this.#size, "Height and width, such as 28 or 32x48"),
        field(this.#test, "Share for the test"),
        field(this.#refused, "Share that may be refused (--max-refused)"),
      ),
    );
    const note = h("p.note", "A tar, Parquet, npz or CSV file can be dropped, too. Nothing in it is run.");
    const parts = [this.#status, this.#error, this.#bar, this.#form, h("div.buttons", this.#start, this.#choose, this.#stop, file), note];
    this.element = panel("Add data", ...parts);
    this.element.classList.add("drop");
    // What is dropped beside the panel is meant for it, too: the browser would leave the page for the file.
    for (const name of ["dragover", "dragleave", "drop"]) addEventListener(name, (event) => this.#onDrag(event), { signal });
  }

  /** Take the bounds of the service. */
  setBounds({ most_upload_bytes: most }) {
    this.#most = most;
  }

  #onDrag(event) {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    this.element.classList.toggle("dropping", event.type === "dragover");
    if (event.type !== "drop") return;
    const [item, another] = event.dataTransfer.items;
    if (another) setText(this.#error, "These are several files. Pack them as one zip, with a folder for each class, and drop that.");
    else if (item?.webkitGetAsEntry?.()?.isDirectory) setText(this.#error, "This is a folder. Pack it as a zip first, and drop that.");
    else if (this.#stop.hidden) this.#take(event.dataTransfer.files[0]);
    else setText(this.#error, "Another file is being sent. Wait until it is there, or stop it.");
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
    this.#form.hidden = this.#start.hidden = false;
    setText(this.#choose, "Choose another file");
    this.#name.focus();
  }

  async #submit(event) {
    event.preventDefault();
    const { name } = this.#file;
    const given = { file: name, size: this.#size.value, test: this.#test.value, max_refused: this.#refused.value };
    const query = new URLSearchParams(Object.entries(given).filter(([, value]) => value.trim()));
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
      this.#form.hidden = this.#start.hidden = true;
      setText(this.#choose, "Choose a file");
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
    this.#start.disabled = this.#choose.disabled = isSending;
  }
}

/** The name of a data set for a file: in small letters, without its ending. */
function nameOf(file) {
  const plain = file.replace(ENDS, "").toLowerCase().normalize("NFKD");
  return plain.replace(/[^a-z0-9._-]+/g, "-").replace(/^[^a-z0-9]+|-+$/g, "").slice(0, 64) || "photos";
}
