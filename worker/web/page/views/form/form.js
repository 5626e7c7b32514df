// The form for a new job: its fields, bounds and defaults are those of the service.

import { Problem, request } from "../../lib/api.js";
import { backToJobs, errorMessage, jobAddress, loading } from "../../lib/components.js";
import { fill, h, setText } from "../../lib/dom.js";
import { createField } from "./field.js";
import { readJobSchema } from "./schema.js";

/** Fields that most runs set; the others are behind "More settings". */
const FIRST = ["dataset", "recipe", "model", "epochs", "batch_size", "learning_rate", "seed", "job_id"];

/** Show the form in `place`, filled with the request of the job `from`, or with null empty but for `dataset`. */
export async function showForm(place, from, { connection, signal }, dataset = null) {
  document.title = "New job - preflight";
  const title = from === null ? "Start a job" : "Run again with…";
  const heading = h("h1", { tabindex: "-1" }, title);
  fill(place, backToJobs(), h("header.job-head", heading), loading("Loading the form…"));
  heading.focus();
  let form;
  await connection.poll("form", load, { every: 0, signal });
  fill(place, backToJobs(), h("header.job-head", heading), form);
  heading.focus();

  async function load() {
    const { read_only: readOnly } = await request("v1/overview", { signal });
    if (readOnly) {
      form = errorMessage("This service is read-only", "It shows jobs, but starts none.");
      return true;
    }
    const schema = await readJobSchema(signal);
    const { given, note } = from === null ? { given: { dataset: dataset ?? "mnist" }, note: null } : await requestOf(from, signal);
    form = new JobForm(schema, given, note).element;
    return true;
  }
}

/** Return the request of a job, and where it comes from. */
async function requestOf(id, signal) {
  const job = h("a", { href: jobAddress(id) }, id);
  try {
    const { job_id: _, type: __, ...given } = await request(`v1/jobs/${encodeURIComponent(id)}/request`, { signal });
    return { given, note: h("p", "The settings are those of ", job, "; change what is to differ.") };
  } catch (problem) {
    if (!(problem instanceof Problem && problem.status === 404)) throw problem;
    return { given: {}, note: h("p.warn", { role: "alert" }, problem.message) };
  }
}

class JobForm {
  #type;
  #controls; // field -> control
  #all; // path of every control, also of those in groups
  #error = h("p.bad", { role: "alert" });
  #button = h("button.primary", { type: "submit" }, "Start the job");
  #ownId = randomId(); // the same with each try: a request that was lost on its way makes no second job

  constructor({ type, fields, recipes }, given, note) {
    this.#type = type;
    const unknown = Object.keys(given).filter((name) => !(name in fields));
    const controls = Object.entries(fields).map(([name, schema]) => [name, createField(name, schema, given[name])]);
    this.#controls = Object.fromEntries(controls);
    this.#all = Object.assign({}, ...controls.map(([, control]) => control.fields));
    const ordered = (names) => names.map((name) => this.#controls[name]?.element).filter(Boolean);
    const isGroup = (name) => fields[name].kind === "object";
    const more = Object.keys(fields).filter((name) => !FIRST.includes(name) && !isGroup(name));
    const submit = (event) => {
      event.preventDefault();
      this.#submit();
    };
    const left = unknown.length ? h("p.warn", `This service does not know ${unknown.join(", ")}; left out.`) : null;
    this.element = h(
      "form.panel.job-form",
      { submit, novalidate: true },
      note,
      left,
      h("div.fields", ordered(FIRST)),
      h(
        "details",
        { open: more.some((name) => given[name] !== undefined) },
        h("summary", "More settings"),
        h("div.fields", ordered(more)),
      ),
      ordered(Object.keys(fields).filter(isGroup)),
      this.#error,
      h("div.buttons", this.#button, h("a.button", { href: "#/" }, "Not now")),
    );
    this.#followRecipe(recipes, given.recipe);
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

  #read() {
    const body = { type: this.#type };
    for (const [name, control] of Object.entries(this.#controls)) {
      control.showProblem("");
      const value = control.read();
      if (value !== undefined) body[name] = value;
    }
    return { job_id: this.#ownId, ...body };
  }

  async #submit() {
    setText(this.#error, "");
    let body;
    for (const control of Object.values(this.#all)) control.showProblem("");
    try {
      body = this.#read();
    } catch (error) {
      return this.#showProblem(error.message, error.message.split(" ")[0]);
    }
    this.#button.disabled = true;
    try {
      const { job_id: id } = await request("v1/jobs", { body });
      location.hash = jobAddress(id);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (problem.status === 409 && body.job_id === this.#ownId) location.hash = jobAddress(body.job_id);
      else if (problem.status === 409) this.#showProblem(`job_id is ${body.job_id}, which is taken; choose another.`, "job_id");
      else this.#showProblem(problem.message, problem.field);
    }
    this.#button.disabled = false;
  }

  /** Show a sentence at its field, else below the form. */
  #showProblem(text, path) {
    const control = this.#all[path];
    if (!control) return setText(this.#error, text);
    control.showProblem(text);
    control.focus();
  }
}

function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
