// The list of a job's events, each as a sentence.

import { panel } from "../lib/components.js";
import { h } from "../lib/dom.js";
import { clock, mebibytes, number, percent, pluralize, seconds, sentence, words } from "../lib/format.js";
import { planSentence } from "../lib/plan_text.js";

/** The events, newest first. */
export class EventList {
  #list = h("ol.events", { role: "log", tabindex: "0", "aria-label": "Events, newest first" });
  #newest = null; // the newest event in the list
  element = panel("Events", this.#list);

  draw(events) {
    for (const event of events.slice(events.indexOf(this.#newest) + 1)) {
      const time = h("time", { datetime: new Date(event.ts * 1000).toISOString() }, clock(event.ts));
      this.#list.prepend(h(`li.${KINDS[event.type] ?? "plain"}`, time, h("p", eventText(event))));
    }
    while (this.#list.children.length > events.length) this.#list.lastElementChild.remove();
    this.#newest = events.at(-1) ?? null;
    this.element.hidden = !events.length;
  }
}

/** Event type -> its colour. */
const KINDS = {
  plan_adapted: "warn",
  out_of_memory: "warn",
  warning: "warn",
  training_done: "good",
  job_failed: "bad",
};

/** Return an event as a sentence. */
function eventText(event) {
  switch (event.type) {
    case "job_started": {
      const job = `${event.model} on ${event.dataset}, ${pluralize(event.epochs, "epoch")}`;
      const batch = `batch ${number(event.batch_size, 0)}`;
      return `Attempt ${event.attempt} started: ${job}, ${batch}, by worker ${event.worker}.`;
    }
    case "resource_limits": {
      const quota = event.quota === undefined ? "" : ` (quota ${number(event.quota)})`;
      const cores = `${pluralize(event.cpu_cores, "core")}${quota}`;
      return `The container allows ${cores} and ${mebibytes(event.memory_mb)} of memory (${event.source}).`;
    }
    case "dataset_ready": {
      const [train, test] = [event.train_samples, event.test_samples].map((count) => number(count, 0));
      return `${event.dataset} is ready after ${seconds(event.seconds)}: ${train} training and ${test} test samples.`;
    }
    case "calibration_winner":
      return `Plan chosen. ${planSentence(event)} ${sentence(event.why)}`;
    case "job_resumed": {
      const steps = event.steps_done ? ` and ${pluralize(event.steps_done, "step")}` : "";
      return `Resumed from the checkpoint after ${pluralize(event.epochs_done, "epoch")}${steps}.`;
    }
    case "plan_adapted": {
      const field = event.field.replaceAll("_", "-");
      return `Changed ${field} from ${event.before} to ${event.after}: ${sentence(event.reason)}`;
    }
    case "out_of_memory":
      return `Out of memory: ${sentence(event.message)}`;
    case "warning":
      return `Warning: ${sentence(event.message)}`;
    case "training_done":
      return `Finished with a test accuracy of ${percent(event.test_accuracy)}.`;
    case "onnx_ready":
      return `The ONNX model is in ${event.onnx}.`;
    case "report_ready":
      return `The report is in ${event.report}.`;
    case "artifact_uploaded":
      return `The model was sent to ${event.artifact_url ?? event.mlflow_uri}.`;
    case "job_failed":
      return `Failed, ${words(event.reason)}: ${sentence(event.message, event.field)}`;
    default:
      return sentence(event.message ?? event.type);
  }
}
