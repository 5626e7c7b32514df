// Try the model: a drawing, or a picture, and the probabilities that it answers with.

import { request } from "../../lib/api.js";
import { panel } from "../../lib/components.js";
import { fill, h, setText } from "../../lib/dom.js";
import { percent } from "../../lib/format.js";

const SIDE = 280;
const STROKE = 22;
/** A larger picture is made smaller first; the service takes 4 million pixels and 4 MiB. */
const MAX_PIXELS = 4e6;
const MAX_BYTES = 4e6;
const SMALL_SIDE = 1000;
const SENT_AS_IS = ["image/png", "image/jpeg"];
/** Pixels a side up to which the images of a grey model may be drawings; larger ones, and coloured ones, are photographs. */
const LARGEST_DRAWN = 64;
/** Classes that are shown; of more, the most probable. */
const MAX_SHOWN = 16;

/** A canvas to draw on, for models of photographs to show them, and the answer; one picture is asked about at a time, and the newest next. */
export class TryIt {
  #path;
  #signal;
  #draws;
  #canvas = h("canvas", { width: SIDE, height: SIDE, role: "img", "aria-label": "Your picture" });
  #answer = h("p.lead", { role: "status" });
  #error = h("p.bad", { role: "alert" });
  #list = h("ol.probabilities");
  #seen = h("p.note");
  #pen = null; // where the stroke is
  #isAsking = false;
  #next = null;

  /** `shape` is that of the model's images: channels, height, width; undefined where it is not known. */
  constructor(path, signal, shape) {
    this.#path = path;
    this.#signal = signal;
    this.#draws = !shape || (shape[0] === 1 && Math.max(...shape) <= LARGEST_DRAWN);
    const file = h("input", { type: "file", accept: "image/*", hidden: true, change: taken });
    const take = (picture) => this.#take(picture);
    function taken() {
      take(file.files[0]);
      file.value = ""; // the same file may be chosen again
    }
    const choose = h("button", { type: "button", click: () => file.click() }, "Choose or take a picture");
    const clear = h("button", { type: "button", click: () => this.#clear() }, "Clear");
    const note = h("p.note", "Or drop a picture here. It is prepared as by ", h("code", "preflight predict"), ".");
    const answer = h("div", this.#answer, this.#error, this.#seen, h("div.buttons", clear, choose, file), note, this.#list);
    this.element = panel("Try it", h("div.try", this.#canvas, answer));
    this.#listen();
    this.#clear();
  }

  #listen() {
    const at = ({ offsetX: x, offsetY: y }) => [x, y].map((place) => (place * SIDE) / this.#canvas.clientWidth);
    const pen = {
      pointerdown: (event) => {
        this.#canvas.setPointerCapture(event.pointerId);
        this.#draw(at(event), at(event));
      },
      pointermove: (event) => this.#pen && this.#draw(this.#pen, at(event)),
      pointerup: () => this.#lift(),
      pointercancel: () => this.#lift(),
    };
    this.#canvas.classList.toggle("pad", this.#draws);
    for (const [name, listener] of Object.entries(this.#draws ? pen : {})) this.#canvas.addEventListener(name, listener);
    for (const name of ["dragover", "dragleave", "drop"])
      this.element.addEventListener(name, (event) => {
        event.preventDefault();
        this.element.classList.toggle("dropping", name === "dragover");
        if (name === "drop") this.#take(event.dataTransfer.files[0]);
      });
  }

  #draw(from, to) {
    const context = this.#canvas.getContext("2d");
    context.lineWidth = STROKE;
    context.lineCap = "round";
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(...to);
    context.stroke();
    this.#pen = to;
  }

  #lift() {
    if (!this.#pen) return;
    this.#pen = null;
    this.#canvas.toBlob((picture) => this.#ask(picture));
  }

  #clear() {
    const context = this.#canvas.getContext("2d");
    context.fillStyle = "#fff";
    context.fillRect(0, 0, SIDE, SIDE);
    this.#next = null;
    setText(this.#error, "");
    this.#canvas.hidden = !this.#draws;
    setText(this.#answer, this.#draws ? "Draw with mouse, pen or finger, or choose a picture." : "Choose a picture.");
    fill(this.#list);
    fill(this.#seen);
  }

  /** Show a file on the canvas, and ask about it. */
  async #take(file) {
    if (!file) return;
    this.#clear();
    try {
      const image = await createImageBitmap(file);
      const scale = SIDE / Math.max(image.width, image.height);
      const [width, height] = [image.width * scale, image.height * scale];
      this.#canvas.hidden = false;
      this.#canvas.getContext("2d").drawImage(image, (SIDE - width) / 2, (SIDE - height) / 2, width, height);
      const fits = file.size <= MAX_BYTES && image.width * image.height <= MAX_PIXELS;
      this.#ask(fits && SENT_AS_IS.includes(file.type) ? file : await smaller(image));
    } catch {
      setText(this.#error, `${file.name} is no picture that this browser can read.`);
    }
  }

  async #ask(picture) {
    this.#next = picture;
    if (this.#isAsking) return;
    this.#isAsking = true;
    if (!this.#list.children.length) setText(this.#answer, "Asking the model…");
    while (this.#next) {
      const asked = this.#next;
      this.#next = null;
      await this.#askOnce(asked);
    }
    this.#isAsking = false;
  }

  async #askOnce(picture) {
    try {
      const found = await request(`${this.#path}/predict?reading=true`, { body: picture, signal: this.#signal });
      setText(this.#error, "");
      this.#show(found.classes ? found : ofAlias(found));
    } catch (problem) {
      if (this.#signal.aborted) return;
      setText(this.#error, problem.message);
      setText(this.#answer, "No answer.");
      fill(this.#list);
      fill(this.#seen);
    }
  }

  #show({ label, name, classes, confidence, probabilities, uncertain, reading }) {
    setText(this.#answer, `${name} (${percent(confidence)})${uncertain ? ", uncertain" : ""}`);
    const seen = h("img.seen", { src: `data:image/png;base64,${reading.image}`, alt: "" });
    fill(this.#seen, seen, reading.uneven ? "What the network sees; the paper is uneven." : "What the network sees.");
    const all = probabilities.map((value, digit) => ({ digit, value }));
    const most = [...all].sort((one, other) => other.value - one.value).slice(0, MAX_SHOWN);
    const shown = all.length > MAX_SHOWN ? most : all;
    const rows = shown.map(({ digit, value }) =>
      h(
        digit === label ? "li.likely" : "li",
        h("span", classes[digit]),
        h("progress", { max: "1", value, "aria-label": `Probability of ${classes[digit]}` }),
        h("span.n", percent(value)),
      ),
    );
    fill(this.#list, rows);
  }
}

/** The answer of a model with a name, as that of a job is. */
function ofAlias({ class: name, probability: confidence, probabilities, ...others }) {
  const classes = Object.keys(probabilities);
  return { ...others, label: classes.indexOf(name), name, classes, confidence, probabilities: Object.values(probabilities) };
}

/** Return a picture of at most `SMALL_SIDE` pixels a side, as PNG. */
function smaller(image) {
  const scale = Math.min(1, SMALL_SIDE / Math.max(image.width, image.height));
  const [width, height] = [image.width, image.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = h("canvas", { width, height });
  canvas.getContext("2d").drawImage(image, 0, 0, width, height);
  return new Promise((resolve) => canvas.toBlob(resolve));
}
