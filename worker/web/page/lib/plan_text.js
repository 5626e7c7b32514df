// A plan in words.

import { number, pluralize } from "./format.js";

/** Field of a plan in an event -> its text. */
const FIELDS = {
  threads: (value) => pluralize(value, "thread"),
  interop: (value) => pluralize(value, "inter-op thread"),
  micro_batch: (value) => `micro-batches of ${number(value, 0)}`,
  eval_batch: (value) => `evaluation batches of ${number(value, 0)}`,
  precision: (value) => value,
  memory_format: (value) => `${value.replace("_", "-")} images`,
  allocator: (value) => (value === "tcmalloc" ? value : `${value} malloc`),
  loader_workers: (value) => (value ? pluralize(value, "loader worker") : "no loader workers"),
  prefetch_factor: (value) => `prefetch of ${number(value, 0)}`,
  affinity: (value) => (value === "pinned" ? "pinned to its processors" : "free to move between processors"),
  weight_gradients: (value) => `gradients of weights ${value === "products" ? "as matrix products" : "by the library"}`,
  compile: (value) => (value ? "compiled" : "not compiled"),
  device: (value) => `on ${value}`,
};

/** The fields of an event that form a plan. */
export function planOf(event) {
  return Object.fromEntries(
    Object.keys(FIELDS)
      .filter((name) => name in event)
      .map((name) => [name, event[name]]),
  );
}

/** A plan as a sentence. */
export function planSentence(plan) {
  const rest = [
    plan.affinity === "pinned" && FIELDS.affinity("pinned"),
    plan.loader_workers > 0 && `batches gathered by ${FIELDS.loader_workers(plan.loader_workers)}`,
    plan.weight_gradients === "products" && FIELDS.weight_gradients("products"),
    plan.compile && "the model compiled",
  ].filter(Boolean);
  const parts = [
    `${FIELDS.threads(plan.threads)} in ${plan.precision}`,
    FIELDS.memory_format(plan.memory_format),
    FIELDS.allocator(plan.allocator),
    FIELDS.micro_batch(plan.micro_batch),
    ...rest,
  ];
  return `Trains with ${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}${plan.device === "cuda" ? ", on a GPU" : ""}.`;
}

/** The fields in which a plan differs from the one before. */
export function changes(before, after) {
  const names = Object.keys(FIELDS).filter((name) => name in after && after[name] !== before[name]);
  return names.map((name) => FIELDS[name](after[name])).join(", ") || "no change";
}
