// A few runs side by side: what differs, results, curves over each other, plans and predictions.

import { request } from "../../lib/api.js";
import { backToJobs, isActive, loading, panel } from "../../lib/components.js";
import { fill, h } from "../../lib/dom.js";
import { toJson } from "../../lib/json.js";
import { loadPlots } from "../../lib/plots.js";
import { Overlay } from "./overlay.js";
import { asCsv, download } from "./take_away.js";
import { METRICS, PLAN, onOneDataset, settingRows, table } from "./tables.js";

const POLL_INTERVAL_MS = 5000;

/** Show the runs `ids` in `place` until `signal` is aborted; the address of the page leads back here. */
export async function showComparison(place, ids, { connection, signal }) {
  document.title = `${ids.length} runs - preflight`;
  const heading = h("h1", { tabindex: "-1" }, "Comparison");
  fill(place, backToJobs(), h("header.job-head", heading), loading("Loading the runs…"));
  heading.focus();
  const view = new ComparisonView(heading);
  signal.addEventListener("abort", () => view.close());
  const query = new URLSearchParams(ids.map((id) => ["job", id]));
  async function refresh() {
    const [found] = await Promise.all([request(`v1/compare?${query}`, { signal }), loadPlots()]);
    if (!view.element.isConnected) {
      fill(place, view.element);
      heading.focus();
    }
    view.show(found);
    return !found.jobs.some(({ state }) => isActive(state));
  }
  await connection.poll("comparison", refresh, { every: POLL_INTERVAL_MS, signal });
}

class ComparisonView {
  #found = null;
  #overlay = new Overlay();
  #all = h("input.tick", { type: "checkbox", id: "all-settings", change: () => this.#showSettings() });
  #settings = h("div");
  #results = h("div");
  #plans = h("div");
  #missing = h("p.note");

  constructor(heading) {
    const take = (name, kind, text) =>
      h("button", { type: "button", click: () => download(`comparison.${kind}`, text(this.#found)) }, name);
    const actions = h("div.actions", take("CSV", "csv", asCsv), take("JSON", "json", (found) => toJson(found, 2)));
    this.element = h(
      "article.compare",
      backToJobs(),
      h("header.job-head", heading, actions),
      panel("Results", this.#results),
      panel("Curves", this.#overlay.element),
      panel("Settings", h("p.option", this.#all, h("label", { for: "all-settings" }, "Show equal settings too")), this.#missing, this.#settings),
      panel("Plan and prediction", this.#plans),
    );
  }

  show(found) {
    this.#found = found;
    const apart = h("p.note", "The runs have different data sets, so no figure is marked as the best.");
    fill(this.#results, table("Results", found, METRICS), !onOneDataset(found.jobs) && apart);
    const hasPlan = found.jobs.some(({ plan }) => plan);
    fill(this.#plans, hasPlan ? table("Plans and predictions", found, PLAN) : h("p.note", "No run has chosen a plan yet."));
    this.#showSettings();
    this.#overlay.draw(found.jobs);
  }

  close() {
    this.#overlay.close();
  }

  #showSettings() {
    const found = this.#found;
    const rows = settingRows(found, this.#all.checked);
    const unknown = found.jobs.filter((job) => !Object.keys(job.settings).length).map((job) => job.state.job_id);
    fill(this.#missing, unknown.length ? `Redis has the request of ${unknown.join(", ")} no more.` : "");
    fill(this.#settings, rows.length ? table("Settings", found, rows) : h("p.note", "Every setting is the same."));
  }
}
