// Polling with exponential backoff, and the bar that reports an outage.

import { Problem } from "./api.js";
import { fill, h } from "./dom.js";

const MIN_RETRY_MS = 500;
const MAX_RETRY_MS = 8_000;

/** The problems between page and service; the first is shown in `bar`. */
export class Connection extends EventTarget {
  #bar;
  #problems = new Map(); // source -> problem

  constructor(bar) {
    super();
    this.#bar = bar;
    addEventListener("online", () => this.retryNow());
    document.addEventListener("visibilitychange", () => document.hidden || this.retryNow());
  }

  /** Set the problem of `source`, or clear it with null. */
  report(source, problem) {
    const before = this.#first();
    if (problem) this.#problems.set(source, problem);
    else this.#problems.delete(source);
    const now = this.#first();
    if (now !== before) this.#show(now);
  }

  /** Forget all problems: another view has others. */
  clear() {
    this.#problems.clear();
    this.#show(undefined);
  }

  /** End every wait. */
  retryNow() {
    this.dispatchEvent(new Event("retry"));
  }

  /** Wait for so many milliseconds or for retryNow(); rejects when `signal` is aborted. */
  wait(milliseconds, signal) {
    return new Promise((resolve, reject) => {
      const done = () => {
        clearTimeout(timer);
        this.removeEventListener("retry", done);
        signal.removeEventListener("abort", done);
        if (signal.aborted) reject(signal.reason);
        else resolve();
      };
      const timer = setTimeout(done, milliseconds);
      this.addEventListener("retry", done);
      signal.addEventListener("abort", done);
    });
  }

  /**
   * Repeat `task` every `every` milliseconds, with exponential backoff while the service is away.
   *
   * A long task calls the function that it is given as soon as the service has answered.
   * Ends when `task` returns true, raises a permanent error, or `signal` is aborted, which raises nothing.
   */
  async poll(source, task, { every, signal }) {
    let delay = MIN_RETRY_MS;
    const onAnswer = () => {
      delay = MIN_RETRY_MS;
      this.report(source, null);
    };
    try {
      for (;;) {
        try {
          const isDone = await task(onAnswer);
          onAnswer();
          if (isDone) return;
          await this.wait(every, signal);
        } catch (error) {
          if (!(error instanceof Problem && error.isTransient)) throw error;
          this.report(source, error);
          await this.wait(delay * (0.75 + Math.random() / 2), signal);
          delay = Math.min(2 * delay, MAX_RETRY_MS);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      this.report(source, null);
      throw error;
    }
  }

  #first() {
    return this.#problems.values().next().value;
  }

  #show(problem) {
    document.documentElement.classList.toggle("away", Boolean(problem));
    this.#bar.hidden = !problem;
    if (!problem) return fill(this.#bar);
    const retry = h("button.quiet", { type: "button", click: () => this.retryNow() }, "Retry now");
    const text = h("p", h("strong", problem.message), " Retrying automatically; this page may be out of date.");
    fill(this.#bar, text, retry);
  }
}
