// What is known of a job: its events, each taken once and in order.

import { Curve } from "./series.js";
import { planOf } from "./format.js";

/** Newest comparisons of a prediction that are kept. */
const CHECKS = 6;
/** Newest turning points that are kept. */
const MOMENTS = 300;
/** Events that a person wants to read; of the others the newest says it all. */
const TELLING = new Set([
  "job_started",
  "resource_limits",
  "dataset_ready",
  "calibration_winner",
  "job_resumed",
  "plan_adapted",
  "out_of_memory",
  "job_interrupted",
  "warning",
  "training_done",
  "job_failed",
  "job_cancelled",
]);
/** Events that are no news to a later attempt. */
const OF_AN_ATTEMPT = ["progress", "epoch_done", "checkpoint_saved", "training_done", "job_failed", "job_cancelled"];

export class Story {
  attempt = 0;
  /** The newest event of each type. */
  latest = {};
  /** The newest event of all. */
  newest = null;
  /** The plan that the training runs under now. */
  plan = null;
  trials = [];
  checks = [];
  moments = [];
  /** Most MiB that were seen in use in the container. */
  memoryPeak = 0;
  /** Loss, accuracy and samples/s of the training steps, by epochs trained. */
  training = new Curve();
  /** Loss and accuracy on the validation samples, by epoch. */
  validation = new Curve();
  /** Where the training went on after an interruption: {x, words}. */
  marks = [];
  #taken = new Map(); // attempt -> the last of its events that was taken
  #goesOn = null; // the mark of the place where the next steps begin
  #steps = 0; // of an epoch

  /** Take an event; returns whether it was new: after a reconnection, or when Redis lost its data, some come twice. */
  take(event) {
    const last = this.#taken.get(event.attempt);
    if (last && event.seq <= last.seq && event.ts <= last.ts) return false;
    this.#taken.set(event.attempt, event);
    if (event.attempt > this.attempt) this.#begin(event.attempt);
    this.latest[event.type] = this.newest = event;
    this.#fold(event);
    if (TELLING.has(event.type)) this.moments.push(event);
    if (this.moments.length > MOMENTS) this.moments.shift();
    return true;
  }

  #begin(attempt) {
    if (this.attempt > 0) this.#goesOn = { x: 0, words: `attempt ${attempt}` };
    this.attempt = attempt;
    for (const type of OF_AN_ATTEMPT) delete this.latest[type];
  }

  #fold(event) {
    switch (event.type) {
      case "calibration_trial":
        this.trials = [...this.trials.filter((trial) => trial.attempt === event.attempt), event];
        break;
      case "calibration_winner":
      case "training_config":
        this.plan = planOf(event);
        break;
      case "plan_adapted":
        this.plan = { ...this.plan, [event.field]: event.after };
        break;
      case "prediction_checked":
        this.checks = [...this.checks, event].slice(-CHECKS);
        break;
      case "job_resumed": {
        const x = event.epochs_done + (this.#steps ? event.steps_done / this.#steps : 0);
        this.#goesOn = { x, words: this.#goesOn?.words ?? "resumed" };
        break;
      }
      case "progress":
        this.#progress(event);
        break;
      case "epoch_done":
        this.validation.add(event.epoch, [event.val_loss ?? null, event.val_acc ?? null]);
        break;
    }
  }

  #progress(event) {
    if (this.#goesOn) {
      this.training.goBack(this.#goesOn.x);
      this.validation.goBack(this.#goesOn.x);
      this.marks.push(this.#goesOn);
      this.#goesOn = null;
    }
    this.#steps = event.steps;
    const x = event.epoch - 1 + event.step / Math.max(1, event.steps);
    this.training.add(x, [event.loss, event.accuracy, event.samples_per_s]);
    this.memoryPeak = Math.max(this.memoryPeak, event.used_memory_mb ?? 0);
  }
}
