// The search of a list: its field, its help, and the order on a phone, where the table has no head.

import { h, setText } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { SORTS } from "./query.js";

const TYPING_MS = 300;

export class SearchBox {
  #problem = h("p.bad", { role: "alert", id: "search-problem" });
  #limit = h("p.note");
  #input;

  constructor({ q, sort }, onChange) {
    let timer;
    const search = () => {
      clearTimeout(timer);
      onChange({ q: this.#input.value.trim() });
    };
    const input = () => {
      clearTimeout(timer);
      timer = setTimeout(search, TYPING_MS);
    };
    const submit = (event) => {
      event.preventDefault();
      search();
    };
    this.#input = h("input", {
      type: "search",
      id: "search",
      value: q,
      input,
      maxlength: "256",
      autocomplete: "off",
      spellcheck: "false",
      placeholder: "model:cnn accuracy>0.99",
      "aria-describedby": "search-problem",
    });
    const change = (event) => onChange({ sort: event.target.value });
    const options = Object.entries({ "": "Newest first", ...directions() }).map(([value, name]) =>
      h("option", { value, selected: value === sort }, name),
    );
    const help = h(
      "details",
      h("summary", "How to search"),
      h("p", "A word is looked for in id, model, data set, recipe, tags and note. ", example("took<5m"), " compares a field with a value;"),
      h("p", "operators are ", code(":"), " (contains), ", code("="), ", ", code("!="), ", ", code("<"), " and ", code(">"), ". ",
        "Every term must hold: ", example("model:cnn accuracy>99% started>2026-01-31"), ", ", example("tag:baseline")),
      this.#limit,
    );
    this.element = h(
      "form.search",
      { role: "search", submit },
      h("label", { for: "search" }, "Search"),
      this.#input,
      h("label.sorting", "Order", h("select", { change }, options)),
      this.#problem,
      help,
    );
  }

  /** Show why the search cannot be carried out, in one sentence; nothing for an empty text. */
  showProblem(text) {
    setText(this.#problem, text);
    this.#input.setAttribute("aria-invalid", text ? "true" : "false");
  }

  showLimit(most) {
    setText(this.#limit, `List and search have the newest ${number(most, 0)} jobs of each status, and the next to run.`);
  }
}

function directions() {
  const pairs = Object.entries(SORTS).flatMap(([field, name]) => [
    [field, `${name}, ascending`],
    [`-${field}`, `${name}, descending`],
  ]);
  return Object.fromEntries(pairs);
}

function code(text) {
  return h("code", text);
}

function example(q) {
  return h("a", { href: `#/?${new URLSearchParams({ q })}` }, code(q));
}
