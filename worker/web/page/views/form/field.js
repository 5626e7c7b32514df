// One field of the form: its control, its default, what it means, and its value. Empty: the default.

import { h, setText } from "../../lib/dom.js";
import { parseJson, toJson } from "../../lib/json.js";
import { meaningOf, nameOf } from "./groups.js";

/** Return the control of a field; `path` names it as the service does: plan.threads. */
export function createField(path, schema, given) {
  return schema.kind === "object" ? new Group(path, schema, given) : new Field(path, schema, given);
}

class Field {
  #path;
  #schema;
  #control;
  #problem;

  constructor(path, schema, given) {
    this.#path = path;
    this.#schema = schema;
    const id = `field-${path}`;
    this.#problem = h("small.bad", { id: `${id}-problem`, role: "alert" });
    this.#control = control(schema, {
      id,
      name: path,
      "aria-describedby": `${id}-hint ${id}-problem`,
      placeholder: shown(schema.default, schema),
      required: schema.isRequired,
    });
    if (given !== undefined && given !== null) this.#fill(given);
    const hint = h("small", { id: `${id}-hint` }, hintOf({ ...schema, description: meaningOf(path, schema.description) }));
    this.element = h("div.field", h("label", { for: id }, nameOf(path)), this.#control, hint, this.#problem);
  }

  /** Offer values; others may be entered. */
  suggest(values) {
    const list = h("datalist", { id: `${this.#control.id}-list` }, values.map((value) => h("option", { value })));
    this.#control.setAttribute("list", list.id);
    this.element.append(list);
  }

  get fields() {
    return { [this.#path]: this };
  }

  /** Fix the value to that of a recipe; undefined: it is free. */
  fix(value) {
    const isFixed = value !== undefined;
    this.#control.disabled = isFixed;
    if (isFixed) this.#control.value = "";
    const text = isFixed ? `${shown(value, this.#schema)}, by the recipe` : shown(this.#schema.default, this.#schema);
    if (this.#control.tagName === "SELECT") setText(this.#control.options[0], isFixed ? text : usual(text, this.#schema));
    else this.#control.placeholder = text;
  }

  onChange(listener) {
    this.#control.addEventListener("change", () => listener(this.#control.value));
  }

  #fill(given) {
    const { kind, enum: names } = this.#schema;
    if (names && !names.includes(given)) this.#control.append(h("option", { value: String(given), disabled: true }, `${given}, which no worker has`));
    this.#control.value = kind === "boolean" ? String(given) : shown(given, this.#schema);
  }

  get isFixed() {
    return this.#control.disabled;
  }

  /** Return the value, undefined for the default; raises an Error with one sentence. */
  read() {
    const text = this.#control.disabled ? "" : this.#control.value.trim();
    if (text === "") {
      if (this.#schema.isRequired) throw new Error(`${this.#path} is missing; ${this.#schema.enum ? "choose" : "enter"} it.`);
      return undefined;
    }
    return parse(this.#path, text, this.#schema);
  }

  showProblem(text) {
    setText(this.#problem, text);
    this.#control.setAttribute("aria-invalid", text ? "true" : "false");
  }

  focus() {
    this.element.closest("details")?.setAttribute("open", "");
    this.#control.focus();
  }
}

/** The fields of an object. */
class Group {
  #fields;
  #path;

  constructor(path, { fields, description }, given = {}) {
    this.#path = path;
    const pairs = Object.entries(fields).map(([name, schema]) => [name, createField(`${path}.${name}`, schema, given?.[name])]);
    this.#fields = Object.fromEntries(pairs);
    const about = description ? h("p.note", description) : null;
    this.element = h("div.whole-row", about, h("div.fields", pairs.map(([, field]) => field.element)));
  }

  get fields() {
    return Object.assign({ [this.#path]: this }, ...Object.values(this.#fields).map((field) => field.fields));
  }

  fix(value) {
    for (const [name, field] of Object.entries(this.#fields)) field.fix(value?.[name]);
  }

  read() {
    const values = Object.entries(this.#fields).map(([name, field]) => [name, field.read()]);
    const given = values.filter(([, value]) => value !== undefined);
    return given.length ? Object.fromEntries(given) : undefined;
  }

  showProblem(text) {
    Object.values(this.#fields)[0]?.showProblem(text);
  }

  focus() {
    Object.values(this.#fields)[0]?.focus();
  }
}

function control(schema, attributes) {
  const { kind, enum: values } = schema;
  if (kind === "choice" || kind === "boolean") {
    const shownAs = (value) => schema.labels?.[value] ?? (kind === "boolean" ? (value ? "yes" : "no") : String(value));
    const options = (values ?? [true, false]).map((value) => h("option", { value: String(value) }, shownAs(value)));
    const fallback = h("option", { value: "" }, usual(attributes.placeholder, schema));
    return h("select", { ...attributes, placeholder: null }, fallback, options);
  }
  if (kind === "json") return h("textarea", { ...attributes, rows: "2", spellcheck: "false" });
  const inputmode = { integer: "numeric", number: "decimal" }[kind];
  return h("input", { ...attributes, type: "text", inputmode, autocomplete: "off", spellcheck: "false" });
}

function parse(path, text, schema) {
  switch (schema.kind) {
    case "integer":
    case "number":
      return parseNumber(path, text, schema);
    case "range":
      return parseRange(path, text, schema);
    case "boolean":
      return text === "true";
    case "choice":
      return schema.enum.find((value) => String(value) === text) ?? text;
    case "list":
      return text.split(",").map((part) => part.trim());
    case "string":
      if (schema.pattern && !new RegExp(schema.pattern, "u").test(text))
        throw new Error(`${path} is ${JSON.stringify(text.slice(0, 40))}, but must match ${schema.pattern}.`);
      return text;
  }
  try {
    return parseJson(text);
  } catch {
    throw new Error(`${path} is not JSON; enter a JSON value.`);
  }
}

function parseNumber(path, text, schema) {
  const value = valueOf(text.replaceAll(",", ""), schema.kind);
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below, kind } = schema;
  const fits = value >= (minimum ?? -Infinity) && value <= (maximum ?? Infinity);
  if (fits && value > (above ?? -Infinity) && value < (below ?? Infinity)) return value;
  const noun = kind === "integer" ? "a whole number" : "a number";
  throw new Error(`${path} is ${JSON.stringify(text.slice(0, 40))}, but must be ${noun}, ${boundsOf(schema)}.`);
}

/** Return a whole number, or the bounds of one: 2, 1-4. */
function parseRange(path, text, schema) {
  const parts = text.split("-").map((part) => parseNumber(path, part.trim(), { ...schema, kind: "integer" }));
  if (parts.length === 1) return parts[0];
  const [min, max] = parts;
  if (parts.length === 2 && min <= max) return { min, max };
  throw new Error(`${path} is ${JSON.stringify(text.slice(0, 40))}, but must be a number or a range such as 1-4.`);
}

/** Return a number, or the BigInt of an integer that no number holds; NaN for anything else. */
function valueOf(text, kind) {
  const value = text.trim() ? Number(text) : NaN;
  if (kind === "integer" && !Number.isSafeInteger(value)) return /^-?\d+$/.test(text) ? BigInt(text) : NaN;
  return Number.isFinite(value) ? value : NaN;
}

function boundsOf({ minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below }) {
  const parts = [
    minimum !== undefined && `at least ${plain(minimum)}`,
    above !== undefined && `more than ${plain(above)}`,
    maximum !== undefined && `at most ${plain(maximum)}`,
    below !== undefined && `less than ${plain(below)}`,
  ];
  return parts.filter(Boolean).join(" and ");
}

function plain(value) {
  return typeof value === "bigint" || Number.isInteger(value) ? value.toLocaleString("en") : String(value);
}

function hintOf(schema) {
  const kind = {
    list: `some of ${schema.items?.enum?.join(", ")}; with commas`,
    range: "a number, or a range such as 1-4",
    json: "as JSON",
  }[schema.kind];
  return [inWords(schema.description ?? ""), kind].filter(Boolean).join("; ");
}

/** A description as the other hints are: in lower case, and a field without a value is an empty one. */
function inWords(text) {
  const plainText = text.replaceAll("\u0060", "").replaceAll("null: ", "empty: ");
  return plainText.replace(/^[A-Z](?=[a-z ])/, (letter) => letter.toLowerCase());
}

function usual(text, { isRequired }) {
  return isRequired ? "Choose one" : `default: ${text || "none"}`;
}

function shown(value, { kind }) {
  if (value === null || value === undefined) return "";
  if (kind === "boolean") return value ? "yes" : "no";
  if (kind === "json") return toJson(value);
  if (kind === "range" && value.min !== undefined) return `${value.min}-${value.max}`;
  return Array.isArray(value) ? value.join(", ") : String(value);
}
