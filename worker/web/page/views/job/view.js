// The elements of one job, redrawn where their data changed.

import { ago, backToJobs, datasetLink, isActive, jobAddress, jobsWith, panel, statusBadge } from "../../lib/components.js";
import { fill, h } from "../../lib/dom.js";
import { number, pluralize, waitsFor } from "../../lib/format.js";
import { setTab } from "../../lib/tab.js";
import { Actions } from "./actions.js";
import { predictions, trials } from "./calibration.js";
import { Charts } from "../charts/charts.js";
import { times } from "../charts/times.js";
import { Details } from "../details/details.js";
import { EventList } from "../events/list.js";
import { group } from "./group.js";
import { modelAddress } from "../models/models.js";
import { Notes } from "./notes.js";
import { plan } from "./plan.js";
import { Progress, drawFigures } from "./progress.js";
import { result } from "./result.js";
import { waiting } from "./waiting.js";

/** A redraw waits this long after the one before it, and as many times as long as that one took. */
const REDRAW_MS = 250;
const REDRAW_COST = 10;

export class JobView {
  /** The state as the service returned it; call draw() after setting it. */
  state = null;
  /** Queue and workers: the newest while the job is queued. */
  overview = null;
  #id;
  #timeline;
  #drawn = new Map(); // element -> the data that it shows
  #isScheduled = false;
  #notBefore = 0;

  #about = h("p.about");
  #actions;
  #notes;
  #result = h("section.outcome", { "aria-label": "Result", role: "status" });
  #details;
  #waiting = h("section.panel", { "aria-label": "What it waits for", role: "status", hidden: true });
  #progress = new Progress();
  #figures = h("dl.figures");
  #chartArea = h("div");
  #charts = new Charts(this.#chartArea);
  #chartPanel = panel("Training curves", this.#chartArea);
  #group = panel("Workers");
  #plan = panel("Plan");
  #times = panel("Time");
  #predictions = panel("Predicted and measured time");
  #trials = panel("Calibration trials");
  #events = new EventList();

  constructor(id, timeline, path, refreshNow) {
    this.#id = id;
    this.#timeline = timeline;
    this.#details = new Details(path);
    this.#notes = new Notes(path, refreshNow);
    this.#actions = new Actions(id, path, { refreshNow, checkpoint: () => checkpointNote(timeline.latest) });
    this.element = h(
      "article",
      backToJobs(),
      h("header.job-head", h("div", h("h1", { tabindex: "-1" }, id), this.#about), this.#actions.element),
      this.#actions.error,
      this.#notes.element,
      this.#result,
      this.#waiting,
      this.#progress.element,
      this.#figures,
      this.#group,
      this.#chartPanel,
      h("div.columns", this.#plan, h("div", this.#times, this.#predictions)),
      this.#trials,
      this.#details.element,
      this.#events.element,
    );
  }

  /** Redraw with the next frame, or a little later: a slow phone has time for its reader while a quick training runs. */
  draw() {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setTimeout(() => requestAnimationFrame(() => this.drawNow()), this.#notBefore - performance.now());
  }

  /** Redraw before the next frame is painted. */
  drawNow() {
    this.#isScheduled = false;
    if (!this.element.isConnected) return;
    const began = performance.now();
    this.#drawParts();
    const ended = performance.now();
    this.#notBefore = ended + Math.max(REDRAW_MS, REDRAW_COST * (ended - began));
  }

  close() {
    this.#charts.close();
    this.#progress.close();
    this.#details.close();
  }

  #drawParts() {
    const { state } = this;
    const timeline = this.#timeline;
    const { latest } = timeline;
    setTab(`${state.status} · ${this.#id} - preflight`, state.status);
    const about = [
      state.status, state.rq_status, state.worker, state.rq_id, latest.job_started, timeline.attempt, state.workers,
      state.updated_at > 0 && !isActive(state) && state.updated_at, state.result?.parent?.job_id,
      latest.model_initialized,
    ];
    this.#redraw(this.#about, about, () => this.#aboutParts());
    this.#actions.draw(state, this.overview);
    this.#notes.draw(state, this.overview);
    this.#redraw(this.#result, [state.status, state.message, JSON.stringify(state.result)], () => result(state));
    const waitingData = [state.status, state.rq_status, state.position, JSON.stringify(this.overview)];
    this.#redraw(this.#waiting, waitingData, () => waiting(state, this.overview));
    this.#progress.draw(state, timeline);
    drawFigures(this.#figures, state, timeline);
    this.#redrawPanel(this.#group, [timeline.group], () => group(timeline));
    this.#drawCharts();
    const planData = [timeline.plan, latest.calibration_winner, latest.batch_advice, latest.resource_limits];
    this.#redrawPanel(this.#plan, planData, () => plan(timeline));
    this.#redrawPanel(this.#predictions, [timeline.checks], () => predictions(timeline.checks));
    this.#redrawPanel(this.#times, [state.status, timeline.newest], () => times(state, timeline));
    const winner = latest.calibration_winner;
    this.#redrawPanel(this.#trials, [timeline.trials, winner], () => trials(timeline.trials, winner));
    this.#details.draw(state, latest);
    this.#events.draw(timeline);
  }

  /** Whether the data of `element` changed since the last call. */
  #changed(element, data) {
    const before = this.#drawn.get(element);
    if (before && data.every((value, index) => value === before[index])) return false;
    this.#drawn.set(element, data);
    return true;
  }

  #redraw(element, data, parts) {
    if (!this.#changed(element, data)) return;
    const children = parts();
    element.hidden = !children.length;
    fill(element, children);
  }

  #redrawPanel(element, data, parts) {
    if (!this.#changed(element, data)) return;
    const children = parts();
    element.hidden = !children.length;
    fill(element, element.querySelector("h2"), children);
  }

  #drawCharts() {
    const { training, validation, resumes } = this.#timeline;
    const newest = training.last;
    this.#chartPanel.hidden = !newest;
    const data = [newest, newest?.x, validation.last, resumes.length];
    if (newest && this.#changed(this.#chartPanel, data)) this.#charts.draw(this.#timeline);
  }

  #aboutParts() {
    const { state } = this;
    const { attempt, latest } = this.#timeline;
    const started = latest.job_started;
    const { model, dataset, worker } = { ...state, ...started };
    const parts = [
      waitsFor(state),
      model && dataset && h("span", jobsWith("model", model), " on ", datasetLink(dataset)),
      state.request?.init_from && h("span", "from ", parentOf(state, latest.model_initialized)),
      started && pluralize(started.epochs, "epoch"),
      started && `batch ${number(started.batch_size, 0)}`,
      started?.recipe && `recipe ${started.recipe}`,
      attempt > 1 && `attempt ${attempt}`,
      worker && `worker ${worker}`,
      state.workers > 1 && pluralize(state.workers, "worker"),
      state.rq_id && `RQ id ${state.rq_id}`,
    ];
    const { started_at: began, updated_at: ended } = state;
    const times = () => h("span", isActive(state) ? "started " : "ended ", ago(isActive(state) ? began : ended));
    const shown = parts.filter(Boolean).map((part) => (part instanceof Element ? part : h("span", part)));
    return [statusBadge(state.status), ...shown, began > 0 && times()];
  }
}

/** The model that a job starts from: its job where that is known, else an alias. */
function parentOf({ request, result }, initialized) {
  const { init_from: name } = request;
  const id = result?.parent?.job_id ?? initialized?.parent;
  if (id) return h("a", { href: jobAddress(id) }, name === id ? name : `${name} (job ${id})`);
  return h("a", { href: modelAddress(name.split("@")[0]) }, name);
}

/** What a cancellation leaves: a job has no checkpoint before its first one is saved. */
function checkpointNote({ checkpoint_saved: saved, job_resumed: resumed }) {
  return saved || resumed ? "Its last checkpoint is kept." : "It has no checkpoint yet.";
}
