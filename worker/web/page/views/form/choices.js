// The first fields: data set and model as lists of what the workers have, recipes as cards.

import { h, setText } from "../../lib/dom.js";
import { number } from "../../lib/format.js";

/** A field's schema as a list of these names; as it is where no worker has said what it has. */
export function listOf(schema, names, labels = {}) {
  return names.length ? { ...schema, kind: "choice", enum: names, labels, pattern: undefined, description: "" } : schema;
}

/** A data set as an option: photos, 3,600 images, 10 classes, now photos@2. */
export function datasetLabel({ name, version, train, test, classes }) {
  const size = train === undefined ? "" : `, ${number(train + test, 0)} images, ${number(classes, 0)} classes`;
  return `${name}${size}${version ? `, now ${version}` : ""}`;
}

/** Recipes as cards, each with what it reaches and how long it takes here; the last one is none. */
export class RecipeField {
  #problem = h("small.bad", { id: "field-recipe-problem", role: "alert" });
  #figures = new Map(); // recipe -> its line of figures
  #inputs = new Map();
  #listeners = [];

  constructor(recipes, given) {
    const cards = [...recipes.map(({ name }) => name), ""].map((name) => this.#card(name, given ?? ""));
    this.element = h("fieldset.recipes", h("legend", "Recipe"), h("div.cards", cards), this.#problem);
    this.show(recipes);
  }

  get fields() {
    return { recipe: this };
  }

  fix() {}

  onChange(listener) {
    this.#listeners.push(listener);
  }

  read() {
    return [...this.#inputs].find(([, input]) => input.checked)?.[0] || undefined;
  }

  /** Show what the recipes come to on the data set that is chosen. */
  show(recipes) {
    for (const { name, text } of recipes) {
      const line = this.#figures.get(name);
      if (line) setText(line, text);
    }
  }

  showProblem(text) {
    setText(this.#problem, text);
  }

  focus() {
    [...this.#inputs.values()].find((input) => input.checked)?.focus();
  }

  #card(name, given) {
    const change = () => this.#listeners.forEach((listener) => listener(name));
    const input = h("input", { type: "radio", name: "recipe", value: name, checked: name === given, change });
    const line = h("small", name ? "" : "a model and settings that you choose");
    this.#inputs.set(name, input);
    this.#figures.set(name, name && line);
    return h("label.card", input, h("span", h("strong", name || "My own settings"), line));
  }
}
