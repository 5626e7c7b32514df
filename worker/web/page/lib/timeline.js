// The state of a job from its events, each applied once and in order.

import { planOf } from "./plan_text.js";
import { Series } from "./series.js";

/** Newest predictions that are kept. */
const MAX_CHECKS = 6;
/** Newest events that are kept for the list. */
const MAX_LISTED = 300;
/** Newest events that are kept as they came. */
const MAX_RAW = 1000;
/** Events that are listed; of the others only the newest is shown. */
const LISTED = new Set([
  "job_started",
  "resource_limits",
  "dataset_ready",
  "calibration_winner",
  "batch_advice",
  "group_formed",
  "group_measured",
  "group_changed",
  "group_short",
  "job_resumed",
  "plan_adapted",
  "processors_shared",
  "out_of_memory",
  "job_interrupted",
  "warning",
  "training_done",
  "onnx_ready",
  "report_ready",
  "artifact_uploaded",
  "job_failed",
  "job_cancelled",
]);
/** Events that say nothing about a later attempt. */
const PER_ATTEMPT = [
  "processors_shared",
  "progress",
  "epoch_done",
  "training_done",
  "job_failed",
  "job_cancelled",
  "group_measured",
  "group_short",
];

export class JobTimeline {
  attempt = 0;
  /** The newest event of each type. */
  latest = {};
  /** The newest event of all. */
  newest = null;
  /** What the attempt does before its first step, in words. */
  stage = "";
  /** The current plan of the training. */
  plan = null;
  /** The workers that train the job together, by rank, with what is known of each by its name; null: none. */
  group = null;
  trials = [];
  checks = [];
  listed = [];
  raw = [];
  /** When the times of the newest attempt ended, by name; seconds since the epoch. */
  marks = {};
  /** Peak memory use of the container in MiB. */
  memoryPeak = 0;
  /** Loss, accuracy and samples/s of the training steps, by epochs trained. */
  training = new Series();
  /** Loss and accuracy on the validation samples, by epoch. */
  validation = new Series();
  /** Where the training resumed after an interruption: {x, label}. */
  resumes = [];
  #applied = new Map(); // attempt -> its last applied event
  #resume = null; // the place where the next steps begin
  #steps = 0; // of an epoch

  /** Apply an event; returns false for a duplicate, which a reconnection or a data loss of Redis may cause. */
  apply(event) {
    const last = this.#applied.get(event.attempt);
    if (last && event.seq <= last.seq && event.ts <= last.ts) return false;
    this.#applied.set(event.attempt, event);
    if (event.attempt > this.attempt) this.#beginAttempt(event.attempt);
    this.latest[event.type] = this.newest = event;
    this.stage = event.stage ?? this.stage;
    this.#update(event);
    this.#mark(event);
    this.raw.push(event);
    if (this.raw.length > 2 * MAX_RAW) this.raw = this.raw.slice(-MAX_RAW);
    if (LISTED.has(event.type)) this.listed.push(event);
    if (this.listed.length > MAX_LISTED) this.listed.shift();
    return true;
  }

  #beginAttempt(attempt) {
    if (this.attempt > 0) this.#resume = { x: 0, label: `attempt ${attempt}` };
    this.attempt = attempt;
    this.group = null;
    this.marks = {};
    for (const type of PER_ATTEMPT) delete this.latest[type];
  }

  #mark({ type, ts }) {
    const { marks } = this;
    if (type === "job_started") marks.started = ts;
    else if (type === "dataset_ready") marks.prepared = ts;
    else if (type === "calibration_winner") marks.calibrated = ts;
    else if (type === "progress" || type === "epoch_done") marks.trained = ts;
    else if (type !== "warning" && marks.trained) marks.reported = ts;
    marks.newest = ts;
  }

  #update(event) {
    switch (event.type) {
      case "calibration_trial":
        this.trials = [...this.trials.filter((trial) => trial.attempt === event.attempt), event];
        break;
      case "calibration_winner":
      case "training_config":
        this.plan = planOf(event);
        break;
      case "group_formed":
      case "group_changed":
      case "group_measured":
        this.group = groupOf(event, this.group ?? NOBODY);
        break;
      case "plan_adapted":
        this.plan = this.plan && planOf(event, this.plan);
        break;
      case "prediction_checked":
        this.checks = [...this.checks, event].slice(-MAX_CHECKS);
        break;
      case "job_resumed": {
        const x = event.epochs_done + (this.#steps ? event.steps_done / this.#steps : 0);
        this.#resume = { x, label: this.#resume?.label ?? "resumed" };
        break;
      }
      case "progress":
        this.#addProgress(event);
        break;
      case "epoch_done":
        this.validation.add(event.epoch, [event.val_loss ?? null, event.val_acc ?? null]);
        break;
    }
  }

  #addProgress(event) {
    if (this.#resume) {
      this.training.rewind(this.#resume.x);
      this.validation.rewind(this.#resume.x);
      this.resumes.push(this.#resume);
      this.#resume = null;
    }
    this.#steps = event.steps;
    const x = event.epoch - 1 + event.step / Math.max(1, event.steps);
    this.training.add(x, [event.loss, event.accuracy, event.samples_per_s]);
    this.memoryPeak = Math.max(this.memoryPeak, event.used_memory_mib ?? 0);
  }
}

const NOBODY = { members: [], message: "", containers: new Map(), speeds: new Map() };

/** Return a group after an event about it; what is known of a member stays until it is measured again. */
function groupOf(event, before) {
  const { members, message } = event.type === "group_measured" ? before : event;
  const { cores = [], memory_mib: memory = [], speeds = [] } = event;
  const containers = cores.map((count, rank) => [event.members[rank], { cores: count, memory: memory[rank] }]);
  const rates = speeds.map((rate, rank) => [event.members[rank], rate]);
  return {
    members,
    message,
    containers: new Map([...before.containers, ...containers]),
    speeds: new Map([...before.speeds, ...rates]),
  };
}
