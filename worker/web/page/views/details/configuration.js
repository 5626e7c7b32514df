// The configuration of a job: every setting, other values than the defaults in bold.

import { panel } from "../../lib/components.js";
import { fill, h } from "../../lib/dom.js";

export class Configuration {
  #note = h("p.note", "Bold: another value than the default.");
  #list = h("dl.config");
  #shown = "";
  element = panel("Configuration", this.#note, this.#list);

  constructor() {
    this.element.hidden = true;
  }

  /** Show the settings as the service returns them: {name, value, changed}. */
  draw(config) {
    const now = JSON.stringify(config);
    if (now === this.#shown) return;
    this.#shown = now;
    this.element.hidden = !config.length;
    const rows = config.map(({ name, value, changed }) =>
      h("div", h("dt", name.replaceAll("_", " ")), h("dd", changed ? h("strong", value) : value)),
    );
    fill(this.#list, rows);
  }
}
