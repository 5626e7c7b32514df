// The schema of a job, as the service describes it: the form has what this service takes, be it newer than the page.

import { request } from "../../lib/api.js";

/**
 * Return the fields of a job by name, and what its recipes fix: recipe -> field -> value, `always`, and where the job
 * starts `afresh`, from no model.
 */
export async function readJobSchema(signal) {
  const { components } = await request("openapi.json", { signal });
  const schemas = components.schemas;
  const job = schemas.TrainJob;
  const { type, ...properties } = fieldsOf(job, schemas);
  return { type: type.const, fields: properties, recipes: recipesOf(job) };
}

function fieldsOf(schema, schemas) {
  const entries = Object.entries(schema.properties ?? {});
  return Object.fromEntries(entries.map(([name, property]) => [name, resolve(name, property, schema, schemas)]));
}

/** Return one field: references followed, `null` as a flag, the fields of an object resolved, too. */
function resolve(name, property, schema, schemas) {
  const options = (property.anyOf ?? property.oneOf ?? [property]).filter((option) => option.type !== "null");
  const [first = {}, second] = options;
  const target = first.$ref ? (schemas[first.$ref.split("/").at(-1)] ?? {}) : first;
  const field = { ...target, ...property, isRequired: (schema.required ?? []).includes(name) };
  field.kind = options.length === 1 ? kindOf(target) : isRange(first, second, schemas) ? "range" : "json";
  if (field.kind === "object") field.fields = fieldsOf(target, schemas);
  return field;
}

/** Whether a field is a whole number, or an object with the bounds of one. */
function isRange(first, second, schemas) {
  const bounds = schemas[second?.$ref?.split("/").at(-1)]?.properties ?? {};
  return first.type === "integer" && String(Object.keys(bounds).sort()) === "max,min";
}

function kindOf({ type, enum: values, properties, items }) {
  if (values) return "choice";
  if (type === "object" && properties) return "object";
  if (type === "array" && items?.enum) return "list";
  return ["boolean", "integer", "number", "string"].includes(type) ? type : "json";
}

function recipesOf({ allOf = [] }) {
  const found = {};
  for (const rule of allOf) {
    const { recipe, init_from: afresh } = rule.if?.properties ?? {};
    const fixed = Object.entries(rule.then?.properties ?? {}).map(([field, { const: value }]) => [field, value]);
    if (!recipe?.const) continue;
    found[recipe.const] ??= { always: {}, afresh: {} };
    Object.assign(found[recipe.const][afresh ? "afresh" : "always"], Object.fromEntries(fixed));
  }
  return found;
}
