// The form for a new job: three fields first, the others in groups; what the service takes, what the workers have.

import { Problem, request } from "../../lib/api.js";
import { backToJobs, errorMessage, jobAddress, loading } from "../../lib/components.js";
import { fill, h, setText } from "../../lib/dom.js";
import { RecipeField, datasetLabel, listOf } from "./choices.js";
import { createField } from "./field.js";
import { GROUPS, nameOf } from "./groups.js";
import { readJobSchema } from "./schema.js";

const FIRST = ["dataset", "recipe", "model"];
/** After a change, before the service is asked what the job would do. */
const PAUSE_MS = 250;

/**
 * Show the form in `place`: empty, filled with the request of the job `from`, or with the fields that `given` names, such
 * as dataset and init_from.
 */
export async function showForm(place, given, { connection, signal }) {
  document.title = "New job - preflight";
  const from = given.get("from");
  const title = from === null ? "Start a job" : "Run again with…";
  const heading = h("h1", { tabindex: "-1" }, title);
  fill(place, backToJobs(), h("header.job-head", heading), loading("Loading the form…"));
  heading.focus();
  let form;
  await connection.poll("form", load, { every: 0, signal });
  fill(place, backToJobs(), h("header.job-head", heading), form.element ?? form);
  heading.focus();

  async function load() {
    const { read_only: readOnly } = await request("v1/overview", { signal });
    if (readOnly) {
      form = errorMessage("This service is read-only", "It shows jobs, but starts none.");
      return true;
    }
    const [schema, { models: aliases }] = await Promise.all([readJobSchema(signal), request("v1/models", { signal })]);
    const { fields, note } = from === null ? { fields: null, note: null } : await requestOf(from, signal);
    const chosen = fields ?? Object.fromEntries([...given].filter(([name]) => name in schema.fields));
    const asked = new URLSearchParams({ dataset: chosen.dataset ?? "mnist" });
    const choices = await request(`v1/choices?${asked}`, { signal });
    const names = aliases.map(({ alias }) => alias);
    const parent = aliases.find(({ alias }) => alias === chosen.init_from?.split("@")[0]);
    form = new JobForm(schema, choices, names, fields ?? usual(chosen, schema, choices, parent), { note, signal });
    return true;
  }
}

/** What an empty form begins with: the quickest recipe, on MNIST where it is there; the network of the model `parent`. */
function usual(chosen, { recipes }, { datasets }, parent) {
  const names = datasets.map(({ name }) => name);
  const dataset = !names.length || names.includes("mnist") ? "mnist" : names[0];
  const network = parent?.current?.model;
  const recipe = network ? Object.keys(recipes).find((name) => recipes[name].always.model === network) : "fast";
  return { dataset, ...(recipe in recipes ? { recipe } : network && { model: network }), ...chosen };
}

/** Return the request of a job, and where it comes from. */
async function requestOf(id, signal) {
  const job = h("a", { href: jobAddress(id) }, id);
  try {
    const { job_id: _, type: __, ...fields } = await request(`v1/jobs/${encodeURIComponent(id)}/request`, { signal });
    return { fields, note: h("p", "The settings are those of ", job, "; change what is to differ.") };
  } catch (problem) {
    if (!(problem instanceof Problem && problem.status === 404)) throw problem;
    return { fields: {}, note: h("p.warn", { role: "alert" }, problem.message) };
  }
}

class JobForm {
  #type;
  #signal;
  #controls; // field -> control
  #all; // path of every control, also of those in groups
  #groups = []; // {names, given}: the fields of a group, and where those that are set are named
  #error = h("p.bad", { role: "alert" });
  #summary = h("p.summary", { role: "status" });
  #button = h("button.primary", { type: "submit" }, "Start the job");
  #ownId = randomId(); // the same with each try: a request that was lost on its way makes no second job
  #timer = null;
  #asked = 0; // forecasts: the answer to an older one is not shown

  constructor({ type, fields, recipes }, choices, aliases, given, { note, signal }) {
    this.#type = type;
    this.#signal = signal;
    const unknown = Object.keys(given).filter((name) => !(name in fields));
    const offered = withChoices(fields, choices);
    const make = ([name, schema]) =>
      name === "recipe" ? new RecipeField(choices.recipes, given.recipe) : createField(name, schema, given[name]);
    const controls = Object.entries(offered).map((entry) => [entry[0], make(entry)]);
    this.#controls = Object.fromEntries(controls);
    this.#all = Object.assign({}, ...controls.map(([, control]) => control.fields));
    this.#controls.init_from?.suggest(aliases);
    const submit = (event) => {
      event.preventDefault();
      this.#submit();
    };
    const left = unknown.length ? h("p.warn", `This service does not know ${unknown.join(", ")}; left out.`) : null;
    this.element = h(
      "form.panel.job-form",
      { submit, novalidate: true, input: () => this.#changed(), change: () => this.#changed() },
      note,
      left,
      h("div.first", FIRST.map((name) => this.#controls[name]?.element)),
      h("h2", "More settings"),
      this.#sections(fields, given),
      this.#summary,
      this.#error,
      h("div.buttons", this.#button, h("a.button", { href: "#/" }, "Cancel")),
    );
    this.#followRecipe(recipes, given.recipe);
    this.#controls.dataset.onChange((name) => this.#showRecipes(name));
    this.#nameGiven();
    this.#forecast();
  }

  /** The groups of the other fields, each behind its name and what is set in it; open where `filled` has some of it. */
  #sections(fields, filled) {
    const known = new Set([...FIRST, ...Object.values(GROUPS).flat()]);
    const others = Object.keys(fields).filter((name) => !known.has(name));
    return Object.entries({ ...GROUPS, Others: others }).flatMap(([title, all]) => {
      const names = all.filter((name) => this.#controls[name]);
      if (!names.length) return [];
      const given = h("small");
      const inner = h("div.fields", names.map((name) => this.#controls[name].element));
      const isOpen = names.some((name) => filled[name] !== undefined);
      const details = h("details", { open: isOpen }, h("summary", h("span", title), given), inner);
      this.#groups.push({ names, given });
      return [details];
    });
  }

  /** Show behind each group's name which of its fields are set. */
  #nameGiven() {
    for (const { names, given } of this.#groups) {
      const set = names.filter((name) => isSet(this.#controls[name]));
      setText(given, set.map(nameOf).join(", "));
    }
  }

  /** Show the fields that a recipe fixes with its values. */
  #followRecipe(recipes, chosen) {
    const { recipe: of, init_from: parent } = this.#controls;
    const fix = (recipe) => {
      const { always = {}, afresh = {} } = recipes[recipe] ?? {};
      const fixed = parent?.read() === undefined ? { ...always, ...afresh } : always;
      for (const [name, control] of Object.entries(this.#controls)) if (name !== "recipe") control.fix(fixed[name]);
    };
    of?.onChange(fix);
    parent?.onChange(() => fix(of?.read()));
    if (chosen) fix(chosen);
  }

  async #showRecipes(dataset) {
    const query = new URLSearchParams({ dataset });
    const { recipes } = await request(`v1/choices?${query}`, { signal: this.#signal });
    this.#controls.recipe?.show(recipes);
  }

  #changed() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#forecast(), PAUSE_MS);
  }

  /** Say what the job would do, or at its field why it is refused. */
  async #forecast() {
    const number = ++this.#asked;
    this.#clear();
    this.#nameGiven();
    let text = "";
    try {
      text = (await request("v1/check", { body: this.#read(), signal: this.#signal })).message;
    } catch (problem) {
      if (this.#signal.aborted || number !== this.#asked) return;
      if (!(problem instanceof Problem) || problem.field) this.#showProblem(problem.message, fieldOf(problem), false);
    }
    if (number === this.#asked) setText(this.#summary, text);
  }

  #clear() {
    setText(this.#error, "");
    for (const control of Object.values(this.#all)) control.showProblem("");
  }

  #read() {
    const body = { type: this.#type };
    for (const [name, control] of Object.entries(this.#controls)) {
      const value = control.read();
      if (value !== undefined) body[name] = value;
    }
    return { job_id: this.#ownId, ...body };
  }

  async #submit() {
    clearTimeout(this.#timer);
    this.#asked += 1; // a forecast on its way is late
    this.#clear();
    let body;
    try {
      body = this.#read();
    } catch (error) {
      return this.#showProblem(error.message, fieldOf(error), true);
    }
    this.#button.disabled = true;
    try {
      const { job_id: id } = await request("v1/jobs", { body });
      location.hash = jobAddress(id);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (problem.status === 409 && body.job_id === this.#ownId) location.hash = jobAddress(body.job_id);
      else if (problem.status === 409) this.#showProblem(`job_id is ${body.job_id}, which is taken; choose another.`, "job_id", true);
      else this.#showProblem(problem.message, problem.field, true);
    }
    this.#button.disabled = false;
  }

  /** Show a sentence at its field, else below the form; a field that a recipe fixes is the recipe's. */
  #showProblem(text, path, moveFocus) {
    const found = this.#all[path];
    const control = found?.isFixed ? this.#controls.recipe : found;
    if (!control) return setText(this.#error, text);
    control.showProblem(text);
    if (moveFocus) control.focus();
    else if (control.element.closest("details:not([open])")) setText(this.#error, text);
  }
}

/** The fields with the lists of what the workers have. */
function withChoices(fields, { datasets, models }) {
  const labels = Object.fromEntries(datasets.map((each) => [each.name, datasetLabel(each)]));
  const dataset = listOf(fields.dataset, datasets.map(({ name }) => name), labels);
  return { ...fields, dataset, model: listOf(fields.model, models) };
}

/** Whether a value is entered, be it a wrong one. */
function isSet(control) {
  try {
    return control.read() !== undefined;
  } catch {
    return true;
  }
}

/** The field that a sentence is about: the service names it, a sentence of the form begins with it. */
function fieldOf(problem) {
  return problem instanceof Problem ? problem.field : problem.message.split(" ")[0];
}

function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
