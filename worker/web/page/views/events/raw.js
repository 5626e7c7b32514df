// The newest events as they came, as JSON lines that can be filtered and copied.

import { copyButton, h, setText } from "../../lib/dom.js";
import { pluralize } from "../../lib/format.js";

const MAX_LINES = 500;

/** A part that is closed at first; it is drawn while it is open. */
export class RawEvents {
  #events = [];
  #drawn = null; // the newest event and the filter that it shows
  #filter = h("input", { type: "search", placeholder: "progress, or \"epoch\":3", input: () => this.#show() });
  #count = h("span.note", { role: "status" });
  #lines = h("code");
  #copy = copyButton(() => this.#text(), this.#lines);
  element = h(
    "details.raw",
    { toggle: () => this.#show() },
    h("summary", "Raw events"),
    h("div.tools", h("label", "Filter ", this.#filter), this.#count, this.#copy),
    h("pre", { tabindex: "0", "aria-label": "Raw events, oldest first" }, this.#lines),
    h("p.hint", "Of a long past, progress and epochs are here as far as the curves need them."),
  );

  draw(events) {
    this.#events = events;
    this.#show();
  }

  #text() {
    const wanted = this.#filter.value.trim();
    const lines = this.#events.map(({ line }) => line);
    return lines.filter((line) => line.includes(wanted)).slice(-MAX_LINES).join("\n");
  }

  #show() {
    const drawn = [this.#events.at(-1), this.#filter.value];
    if (!this.element.open || drawn.every((value, index) => value === this.#drawn?.[index])) return;
    this.#drawn = drawn;
    const place = this.#lines.parentElement;
    const atEnd = place.scrollTop + place.clientHeight >= place.scrollHeight - 20;
    const text = this.#text();
    setText(this.#lines, text);
    setText(this.#count, pluralize(text ? text.split("\n").length : 0, "event"));
    if (atEnd) place.scrollTop = place.scrollHeight;
  }
}
