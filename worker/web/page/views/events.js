// A turning point of a job as a sentence.

import { sentence } from "../lib/api.js";
import { counted, mebibytes, number, percent, planSentence, seconds } from "../lib/format.js";

/** Return what an event says in words, and how much it matters: good, warn, bad or plain. */
export function told(event) {
  switch (event.type) {
    case "job_started":
      return plain(
        `Attempt ${event.attempt} started: ${event.model} on ${event.dataset}, ${counted(event.epochs, "epoch")}, ` +
          `batch ${number(event.batch_size, 0)}, by worker ${event.worker}.`,
      );
    case "resource_limits": {
      const quota = event.quota === undefined ? "" : ` (quota ${number(event.quota)})`;
      const cores = `${counted(event.cpu_cores, "core")}${quota}`;
      return plain(`The container allows ${cores} and ${mebibytes(event.memory_mb)} of memory (${event.source}).`);
    }
    case "dataset_ready":
      return plain(
        `${event.dataset} is ready after ${seconds(event.seconds)}: ${number(event.train_samples, 0)} training and ` +
          `${number(event.test_samples, 0)} test samples.`,
      );
    case "calibration_winner":
      return plain(`The plan is chosen. ${planSentence(event)} ${sentence(event.why)}`);
    case "job_resumed":
      return plain(
        `Goes on from a checkpoint made after ${counted(event.epochs_done, "epoch")}` +
          `${event.steps_done ? ` and ${counted(event.steps_done, "step")}` : ""}.`,
      );
    case "plan_adapted":
      return warn(
        `Changed ${event.field.replaceAll("_", "-")} from ${event.before} to ${event.after}: ${sentence(event.reason)}`,
      );
    case "out_of_memory":
      return warn(`Out of memory: ${sentence(event.message)}`);
    case "warning":
      return warn(`Warning: ${sentence(event.message)}`);
    case "job_interrupted":
      return plain(sentence(event.message));
    case "training_done":
      return { words: `Finished with a test accuracy of ${percent(event.test_accuracy)}.`, kind: "good" };
    case "job_failed":
      return { words: `Failed, ${event.reason.replaceAll("_", " ")}: ${sentence(event.message)}`, kind: "bad" };
    case "job_cancelled":
      return plain(sentence(event.message));
  }
  return plain(event.type);
}

function plain(words) {
  return { words, kind: "plain" };
}

function warn(words) {
  return { words, kind: "warn" };
}
