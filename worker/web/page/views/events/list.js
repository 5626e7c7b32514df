// The list of a job's events, each as the sentence of the worker's log, and all of them raw.

import { panel } from "../../lib/components.js";
import { h, marked } from "../../lib/dom.js";
import { clock, zone } from "../../lib/format.js";
import { RawEvents } from "./raw.js";

/** Event type -> its colour. */
const KINDS = {
  plan_adapted: "warn",
  out_of_memory: "warn",
  group_short: "warn",
  warning: "warn",
  training_done: "good",
  job_failed: "bad",
};

/** The events, newest first. */
export class EventList {
  #list = h("ol");
  #newest = null; // the newest event in the list
  #raw = new RawEvents();
  element = panel(
    "Events",
    h("p.note", `Times are in ${zone()}.`),
    h("div.events", { role: "log", tabindex: "0", "aria-label": "Events, newest first" }, this.#list),
    this.#raw.element,
  );

  draw({ listed, raw }) {
    for (const event of listed.slice(listed.indexOf(this.#newest) + 1)) {
      const iso = new Date(event.ts * 1000).toISOString();
      const time = h("time", { datetime: iso, title: iso }, clock(event.ts));
      this.#list.prepend(h(`li.${KINDS[event.type] ?? "plain"}`, time, h("p", marked(event.text))));
    }
    while (this.#list.children.length > listed.length) this.#list.lastElementChild.remove();
    this.#newest = listed.at(-1) ?? null;
    this.element.hidden = !listed.length;
    this.#raw.draw(raw);
  }
}
