// The configuration of a job: the settings that differ from the defaults, and behind a line all others.

import { panel } from "../../lib/components.js";
import { fill, h, setText } from "../../lib/dom.js";
import { pluralize } from "../../lib/format.js";

export class Configuration {
  #own = h("dl.config");
  #others = h("dl.config");
  #count = h("summary");
  #shown = "";
  element = panel("Configuration", this.#own, h("details", this.#count, this.#others));

  constructor() {
    this.element.hidden = true;
  }

  /** Show the settings as the service returns them: {name, value, changed}. */
  draw(config) {
    const now = JSON.stringify(config);
    if (now === this.#shown) return;
    this.#shown = now;
    this.element.hidden = !config.length;
    const usual = config.filter(({ changed }) => !changed);
    fill(this.#own, config.filter(({ changed }) => changed).map(row));
    fill(this.#others, usual.map(row));
    setText(this.#count, `${pluralize(usual.length, "setting")} as by default`);
  }
}

function row({ name, value }) {
  return h("div", h("dt", name.replaceAll("_", " ").replaceAll(".", ": ")), h("dd", value));
}
