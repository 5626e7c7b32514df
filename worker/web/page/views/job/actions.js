// What can be done with a job: cancel it, retry it, run it again with changes, or use its model.

import { addressOf, request } from "../../lib/api.js";
import { isActive } from "../../lib/components.js";
import { confirmDialog, copyButton, h, setText } from "../../lib/dom.js";
import { sentence } from "../../lib/format.js";
import { modelAddress, promoteJob } from "../models/models.js";

/** Reasons of failures that the same request repeats; "Run again with…" changes it. */
const REPEATS = new Set(["diverged", "invalid_config"]);

export class Actions {
  error = h("p.warn", { role: "alert" });
  #id;
  #path;
  #refreshNow;
  #checkpoint;
  #state = null;
  #doing = ""; // the action that was asked for, until the job's status shows it
  #cancelButton = h("button", { type: "button", hidden: true, click: () => this.#cancel() }, "Cancel job");
  #retryButton = h("button", { type: "button", hidden: true, click: () => this.#retry() }, "Retry");
  #useButton = h("button", { type: "button", hidden: true, click: () => this.#use() }, "Use as production…");
  #deleteButton = h("button", { type: "button", hidden: true, click: () => this.#delete() }, "Delete…");
  #again;
  #link;
  element;

  /** `checkpoint` says what a cancellation leaves of a running job. */
  constructor(id, path, { refreshNow, checkpoint }) {
    this.#id = id;
    this.#path = path;
    this.#refreshNow = refreshNow;
    this.#checkpoint = checkpoint;
    this.#again = h("a.button", { href: `#/new?${new URLSearchParams({ from: id })}`, hidden: true }, "Run again with…");
    const address = h("span.hidden", addressOf(`jobs/${encodeURIComponent(id)}`));
    this.#link = h("span", copyButton(address.textContent, address, "Copy link"), address);
    this.element = h("div.actions", this.#cancelButton, this.#retryButton, this.#useButton, this.#again, this.#deleteButton, this.#link);
  }

  draw(state, overview) {
    if (state.status !== this.#state?.status) this.#doing = "";
    this.#state = state;
    const readOnly = overview?.read_only ?? true;
    const canRetry = state.status === "cancelled" || (state.status === "failed" && !REPEATS.has(state.reason));
    this.#cancelButton.hidden = readOnly || !isActive(state);
    this.#retryButton.hidden = readOnly || !canRetry;
    this.#useButton.hidden = readOnly || state.status !== "finished";
    this.#again.hidden = readOnly;
    this.#deleteButton.hidden = readOnly || isActive(state);
    this.#deleteButton.disabled = Boolean(state.deleting);
    setText(this.#deleteButton, state.deleting ? "Being deleted…" : "Delete…");
    if (state.kept_because) setText(this.error, sentence(state.kept_because));
    this.#cancelButton.disabled = this.#retryButton.disabled = Boolean(this.#doing);
    setText(this.#cancelButton, this.#doing === "cancel" ? "Cancelling…" : "Cancel job");
    setText(this.#retryButton, this.#doing === "retry" ? "Retrying…" : "Retry");
  }

  async #cancel() {
    const effect =
      this.#state.status === "queued"
        ? "It is removed from the queue."
        : `It stops within a step. ${this.#checkpoint()}`;
    const parts = [h("p", h("code", this.#id)), h("p", effect)];
    const answers = { yes: "Cancel the job", no: "Keep it", danger: true };
    if (await confirmDialog("Cancel this job?", parts, answers)) await this.#ask("cancel");
  }

  async #retry() {
    const parts = [
      h("p", h("code", this.#id)),
      h("p", "It is enqueued again under its id, with the same request. It resumes from its checkpoint if it has one."),
    ];
    if (await confirmDialog("Retry this job?", parts, { yes: "Retry", no: "Leave it" })) await this.#ask("retry");
  }

  async #delete() {
    const parts = [
      h("p", h("code", this.#id)),
      h("p", "Its records, its model and its checkpoints are deleted, and its id is not trained again. What was exported stays."),
      h("p", "This cannot be undone."),
    ];
    if (!(await confirmDialog("Delete this job?", parts, { yes: "Delete", no: "Cancel", danger: true }))) return;
    setText(this.error, "");
    try {
      await request(this.#path, { method: "DELETE" });
    } catch (problem) {
      setText(this.error, problem.message);
    }
    this.#refreshNow();
  }

  async #use() {
    setText(this.error, "");
    this.#useButton.disabled = true;
    try {
      const alias = await promoteJob(this.#id);
      if (alias) location.hash = modelAddress(alias);
    } catch (problem) {
      setText(this.error, problem.message);
    }
    this.#useButton.disabled = false;
  }

  async #ask(action) {
    this.#doing = action;
    setText(this.error, "");
    this.#cancelButton.disabled = this.#retryButton.disabled = true;
    try {
      await request(`${this.#path}/${action}`, { body: {} });
    } catch (problem) {
      this.#doing = "";
      setText(this.error, problem.message);
      this.#cancelButton.disabled = this.#retryButton.disabled = false;
    }
    this.#refreshNow();
  }
}
