// One job: where it is, how it got there, and what came out of it.

import { request } from "../lib/api.js";
import { Curves } from "./charts.js";
import { ask, fill, h, say } from "../lib/dom.js";
import { outcomeOf } from "./result.js";
import { calibration, comparisons, plan } from "./calibration.js";
import { backToJobs, goesOn, panel, pill } from "../lib/components.js";
import { told } from "./events.js";
import { NONE, ago, counted, duration, mebibytes, moment, number, percent, seconds, speed } from "../lib/format.js";

/** The elements of one job. */
export class View {
  /** As the service has it; set, then draw(). */
  state = null;
  #id;
  #story;
  #path;
  #parts = {};
  #curves;
  #drawn = new Map(); // panel -> what it was drawn from
  #moment = null; // the newest one in the list
  #due = false;
  #cancelling = false;

  constructor(id, story, path) {
    this.#id = id;
    this.#story = story;
    this.#path = path;
    const make = (name, element) => (this.#parts[name] = element);
    const charts = h("div", { class: "charts" });
    this.element = h(
      "article",
      {},
      backToJobs(),
      h(
        "header",
        { class: "job-head" },
        h("div", {}, h("h1", { tabindex: "-1" }, id), make("about", h("p", { class: "about" }))),
        make(
          "cancel",
          h("button", { type: "button", class: "quiet", hidden: true, click: () => this.#cancel() }, "Cancel job"),
        ),
      ),
      make("refused", h("p", { class: "warn", role: "alert" })),
      make("outcome", h("section", { class: "outcome", "aria-label": "Outcome", role: "status" })),
      make("progress", h("section", { class: "course", "aria-label": "Progress" })),
      make("figures", h("dl", { class: "figures" })),
      make("curves", panel("Over the epochs", "wide", charts)),
      h(
        "div",
        { class: "columns" },
        make("plan", panel("The plan", "")),
        make("checks", panel("Prediction against reality", "")),
      ),
      make("trials", panel("How the plan was found", "wide")),
      panel(
        "What happened",
        "wide",
        make(
          "moments",
          h("ol", { class: "moments", role: "log", tabindex: "0", "aria-label": "Turning points, the newest first" }),
        ),
      ),
    );
    this.#makeProgress();
    this.#curves = new Curves(charts);
  }

  /** Draw soon what is known by then, once for all events that came together. */
  draw() {
    if (this.#due) return;
    this.#due = true;
    requestAnimationFrame(() => {
      this.#due = false;
      if (this.element.isConnected) this.#drawNow();
    });
  }

  end() {
    this.#curves.end();
  }

  #drawNow() {
    const { state } = this;
    const story = this.#story;
    const { about, cancel, outcome, curves, plan: plans, checks, trials } = this.#parts;
    document.title = `${state.status} · ${this.#id} - preflight`;
    this.#redraw(about, [state.status, state.worker, story.latest.job_started, story.attempt], () => this.#about());
    this.#cancelling &&= goesOn(state);
    cancel.hidden = !goesOn(state);
    cancel.disabled = this.#cancelling;
    say(cancel, this.#cancelling ? "Cancelling…" : "Cancel job");
    this.#redraw(outcome, [state.status, state.message, JSON.stringify(state.result)], () => outcomeOf(state));
    this.#drawProgress();
    this.#drawFigures();
    curves.hidden = !story.training.last;
    if (!curves.hidden) this.#redrawCurves();
    this.#panel(plans, [story.plan, story.latest.calibration_winner, story.latest.resource_limits], () => plan(story));
    this.#panel(checks, [story.checks], () => comparisons(story.checks));
    this.#panel(trials, [story.trials], () => calibration(story.trials));
    this.#drawMoments();
  }

  /** Fill `element` again where what it is drawn from has changed. */
  #redraw(element, sources, parts) {
    const before = this.#drawn.get(element);
    if (before && sources.every((source, index) => source === before[index])) return;
    this.#drawn.set(element, sources);
    const children = parts();
    element.hidden = !children.length;
    fill(element, ...children);
  }

  #panel(element, sources, parts) {
    const heading = element.querySelector("h2");
    this.#redraw(element, sources, () => {
      const found = parts();
      return found.length ? [heading, ...found] : [];
    });
    if (!element.firstChild) element.append(heading);
  }

  #redrawCurves() {
    const newest = this.#story.training.last;
    const sources = [newest, newest.x, this.#story.validation.last, this.#story.marks.length];
    const before = this.#drawn.get(this.#curves);
    if (before && sources.every((source, index) => source === before[index])) return;
    this.#drawn.set(this.#curves, sources);
    this.#curves.draw(this.#story);
  }

  #about() {
    const { state } = this;
    const started = this.#story.latest.job_started;
    const what = started ?? state;
    const words = [
      what.model && what.dataset && `${what.model} on ${what.dataset}`,
      started && counted(started.epochs, "epoch"),
      started && `batch ${number(started.batch_size, 0)}`,
      started?.recipe && `recipe ${started.recipe}`,
      this.#story.attempt > 1 && `attempt ${this.#story.attempt}`,
      (started?.worker ?? state.worker) && `worker ${started?.worker ?? state.worker}`,
    ];
    return [pill(state.status), ...words.filter(Boolean).map((text) => h("span", {}, text))];
  }

  #makeProgress() {
    const bar = h("progress", { max: "1", "aria-label": "Share of the training that is done" });
    const [where, left] = [h("span", { class: "where" }), h("span", { class: "left" })];
    Object.assign(this.#parts, { bar, where, left });
    fill(this.#parts.progress, h("p", {}, where, left), bar);
  }

  #drawProgress() {
    const { progress, bar, where, left } = this.#parts;
    const { state } = this;
    const { latest } = this.#story;
    progress.hidden = !goesOn(state);
    if (progress.hidden) return;
    const now = latest.progress;
    say(where, state.status === "queued" ? "Waiting in the queue for a worker" : phase(this.#story));
    say(left, now && state.status === "running" && now.eta_s > 0 ? `about ${duration(now.eta_s)} left` : "");
    if (now && now.steps) bar.value = (now.epoch - 1 + now.step / now.steps) / now.epochs;
    else if (state.status === "queued") bar.value = 0;
    else bar.removeAttribute("value"); // nobody knows how long it takes
  }

  #drawFigures() {
    const { latest, memoryPeak, validation } = this.#story;
    const { state } = this;
    const { progress: now, epoch_done: epoch, checkpoint_saved: saved } = latest;
    // What an attempt has not said yet, or said too long ago to be kept, the state may know.
    const { loss, accuracy, samples_per_s: rate, used_memory_mb: used } = now ?? state;
    const limit = latest.resource_limits?.memory_mb ?? state.memory_mb;
    const peak = memoryPeak > used ? `at most ${mebibytes(memoryPeak)} ` : "";
    const validated = validation.last?.values[1] ?? state.val_acc;
    const shown = (value, words) => (value === undefined || value === null ? NONE : words(value));
    const last = epoch && `epoch ${number(epoch.epoch, 0)}`;
    const tiles = [
      ["Loss", shown(loss, (value) => number(value)), "training samples"],
      ["Accuracy", shown(accuracy, (value) => percent(value)), "training samples"],
      ["Validation", shown(validated, (value) => percent(value)), last ? `after ${last}` : ""],
      ["Samples/s", shown(rate, speed), last ? `${speed(epoch.samples_per_s)} in ${last}` : "at present"],
      ["Memory", shown(used, mebibytes), limit ? `${peak}of ${mebibytes(limit)}` : "", used / limit],
      [
        "Checkpoint",
        shown(saved?.ts, ago),
        saved ? `${mebibytes(saved.bytes / 2 ** 20)} in ${seconds(saved.seconds)}` : "",
      ],
    ];
    const { figures } = this.#parts;
    figures.hidden = loss === undefined;
    if (!figures.children.length)
      fill(
        figures,
        tiles.map(([name]) => tile(name)),
      );
    tiles.forEach(([, value, note, share], index) => {
      const figure = figures.children[index];
      const [big, small, bar] = ["dd span", "dd small", "progress"].map((css) => figure.querySelector(css));
      say(big, value);
      say(small, note);
      bar.hidden = !(share >= 0);
      bar.value = share || 0;
    });
  }

  #drawMoments() {
    const { moments } = this.#story;
    const list = this.#parts.moments;
    const fresh = moments.slice(moments.indexOf(this.#moment) + 1);
    for (const event of fresh) {
      const { words, kind } = told(event);
      const when = h("time", { datetime: new Date(event.ts * 1000).toISOString() }, moment(event.ts));
      list.prepend(h("li", { class: kind }, when, h("p", {}, words)));
    }
    while (list.children.length > moments.length) list.lastElementChild.remove();
    this.#moment = moments.at(-1) ?? null;
    list.parentElement.hidden = !moments.length;
  }

  async #cancel() {
    const question =
      this.state.status === "queued"
        ? "It is taken out of the queue."
        : "It stops within a step. Its checkpoint stays.";
    const parts = [h("p", {}, h("code", {}, this.#id)), h("p", {}, question)];
    if (!(await ask("Cancel this job?", parts, { yes: "Cancel the job", no: "Keep it", danger: true }))) return;
    this.#cancelling = true;
    this.draw();
    say(this.#parts.refused, "");
    try {
      await request(`${this.#path}/cancel`, { body: {} });
    } catch (problem) {
      this.#cancelling = false;
      say(this.#parts.refused, problem.message);
    }
    this.draw();
  }
}

function tile(name) {
  const bar = h("progress", { max: "1", "aria-label": `${name}, share of the limit`, hidden: true });
  return h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}, h("span"), h("small"), bar));
}

/** Return what a running job is doing now. */
function phase({ latest, newest, trials }) {
  const now = latest.progress;
  if (now) {
    if (now.epoch === now.epochs && latest.epoch_done?.epoch === now.epochs) return "Testing and saving the model";
    const [epoch, epochs, step, steps] = [now.epoch, now.epochs, now.step, now.steps].map((count) => number(count, 0));
    return `Epoch ${epoch} of ${epochs}, step ${step} of ${steps}`;
  }
  switch (newest?.type) {
    case "job_started":
    case "resource_limits":
      return "Preparing the data set";
    case "dataset_ready":
      return "Looking for the fastest plan";
    case "calibration_trial":
      return `Looking for the fastest plan, ${counted(trials.length, "trial")} so far`;
    default:
      return newest ? "Starting the training" : "Running";
  }
}
