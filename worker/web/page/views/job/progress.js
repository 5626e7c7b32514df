// Progress of a running job, and its latest figures.

import { isActive, shareDone } from "../../lib/components.js";
import { fill, h, setText } from "../../lib/dom.js";
import { NONE, age, duration, mebibytes, number, percent, pluralize, seconds, speed, words } from "../../lib/format.js";
import { canNotify, mayNotify, notify } from "../../lib/tab.js";

/** The phase of a job, its progress bar and its remaining time. */
export class Progress {
  #bar = h("progress", { max: "1", "aria-label": "Progress of the training" });
  #phase = h("span.where");
  #remaining = h("span.left");
  #wished = false; // to be notified of the end
  #wish = h("button.quiet", { type: "button", hidden: !canNotify(), click: () => this.#ask() }, "Notify me when it ends");
  element = h("section.course", { "aria-label": "Progress" }, h("p", this.#phase, this.#remaining), this.#bar, this.#wish);

  #timer = null;

  draw(state, timeline) {
    this.close();
    if (this.#wished && !isActive(state)) {
      this.#wished = false;
      notify(`${state.job_id} is ${state.status}`, endOf(state), state.job_id);
    }
    this.element.hidden = !isActive(state);
    if (this.element.hidden) return;
    const { progress } = timeline.latest;
    const isQueued = state.status === "queued";
    setText(this.#phase, isQueued ? "Waiting in the queue for a worker" : phase(timeline));
    const isRunning = progress && state.status === "running";
    const countdown = progress || isQueued ? null : timeLeft(timeline.newest);
    if (countdown !== null) this.#timer = setTimeout(() => this.draw(state, timeline), 1000);
    const left = isRunning && progress.eta_s > 0 ? `about ${duration(progress.eta_s)} left` : "";
    setText(this.#remaining, countdown === null ? left : `at most ${duration(countdown)} left to calibrate`);
    if (isQueued) this.#bar.value = 0;
    else if (progress) this.#bar.value = shareDone(progress);
    else this.#bar.removeAttribute("value"); // indeterminate
  }

  async #ask() {
    this.#wished = await mayNotify();
    this.#wish.disabled = this.#wished;
    setText(this.#wish, this.#wished ? "You will be notified" : "This browser does not allow it");
  }

  /** End the countdown. */
  close() {
    clearTimeout(this.#timer);
  }
}

/** What a notification says of the end of a job. */
function endOf({ test_accuracy: accuracy, result, reason, message }) {
  const reached = accuracy ?? result?.test_accuracy;
  return reached === undefined ? (message ?? words(reason ?? "")) : `${percent(reached)} test accuracy`;
}

/** Seconds that the calibration may still take, by its newest trial; null where that is not known. */
function timeLeft(newest) {
  return newest?.left_s === undefined ? null : Math.max(0, newest.left_s - (Date.now() / 1000 - newest.ts));
}

/** Return the current phase of a running job. */
function phase({ latest, newest, trials, stage }) {
  const { progress } = latest;
  if (progress) {
    if (progress.epoch === progress.epochs && latest.epoch_done?.epoch === progress.epochs)
      return "Testing and saving the model";
    const counts = [progress.epoch, progress.epochs, progress.step, progress.steps];
    const [epoch, epochs, step, steps] = counts.map((count) => number(count, 0));
    return `Epoch ${epoch} of ${epochs}, step ${step} of ${steps}`;
  }
  const begun = stage ? stage.slice(0, 1).toUpperCase() + stage.slice(1) : "Running";
  if (newest?.type !== "calibration_trial") return begun;
  return `${begun}, ${pluralize(trials.filter((trial) => trial.verdict !== "skipped").length, "trial")} so far`;
}

/** Draw the latest figures of a job as tiles; the state fills in for events that are not there (any more). */
export function drawFigures(element, state, { latest, memoryPeak, validation }) {
  const { epoch_done: epoch, checkpoint_saved: saved } = latest;
  const { loss, accuracy, samples_per_s: rate, used_memory_mib: used } = latest.progress ?? state;
  const limit = latest.resource_limits?.memory_mib ?? state.memory_mib;
  const peak = memoryPeak > used ? `peak ${mebibytes(memoryPeak)} ` : "";
  const shown = (value, format) => (value === undefined || value === null ? NONE : format(value));
  const validated = validation.last?.values[1] ?? state.val_acc ?? null;
  const lastEpoch = epoch && `epoch ${number(epoch.epoch, 0)}`;
  const tiles = [
    ["Loss", shown(loss, (value) => number(value)), "training samples"],
    ["Accuracy", shown(accuracy, (value) => percent(value)), "training samples"],
    [
      "Validation",
      shown(validated, (value) => percent(value)),
      epoch && validated !== null ? `after ${lastEpoch}` : "",
    ],
    ["Samples/s", shown(rate, speed), epoch ? `${speed(epoch.samples_per_s)} in ${lastEpoch}` : "now"],
    ["Memory", shown(used, mebibytes), limit ? `${peak}of ${mebibytes(limit)}` : "", used / limit],
    [
      "Checkpoint",
      shown(saved?.ts, age),
      saved ? `${mebibytes(saved.checkpoint_bytes / 2 ** 20)} in ${seconds(saved.took_s)}` : "",
    ],
  ];
  element.hidden = loss === undefined;
  if (!element.children.length)
    fill(
      element,
      tiles.map(([name]) => tile(name)),
    );
  tiles.forEach(([, value, note, share], index) => {
    const [big, small, bar] = ["dd span", "dd small", "progress"].map((css) =>
      element.children[index].querySelector(css),
    );
    setText(big, value);
    setText(small, note);
    bar.hidden = !(share >= 0);
    bar.value = share || 0;
  });
}

function tile(name) {
  const bar = h("progress", { max: "1", "aria-label": `${name}, share of the limit`, hidden: true });
  return h("div.figure", h("dt", name), h("dd", h("span"), h("small"), bar));
}
