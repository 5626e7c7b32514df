// Keeping in touch with the service: asking again by itself, ever more patiently, and saying so.

import { Problem } from "./api.js";
import { fill, h } from "./dom.js";

const FIRST_WAIT = 500;
const LONGEST_WAIT = 8_000;

/** What is wrong between page and service, shown in `bar` while it is so. */
export class Connection extends EventTarget {
  #bar;
  #troubles = new Map(); // who is in trouble -> the problem

  constructor(bar) {
    super();
    this.#bar = bar;
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => document.hidden || this.hurry());
  }

  /** Note that `who` is in trouble, or, with null, that all is well again. */
  report(who, problem) {
    const before = this.#shown();
    if (problem) this.#troubles.set(who, problem);
    else this.#troubles.delete(who);
    const now = this.#shown();
    if (now !== before) this.#show(now);
  }

  /** Forget all troubles: another view has others. */
  clear() {
    this.#troubles.clear();
    this.#show(undefined);
  }

  /** Wait so many milliseconds, or until there is reason to hope; rejects when `signal` is aborted. */
  wait(milliseconds, signal) {
    return new Promise((resolve, reject) => {
      const done = () => {
        clearTimeout(timer);
        this.removeEventListener("hurry", done);
        signal.removeEventListener("abort", done);
        if (signal.aborted) reject(signal.reason);
        else resolve();
      };
      const timer = setTimeout(done, milliseconds);
      this.addEventListener("hurry", done);
      signal.addEventListener("abort", done);
    });
  }

  /**
   * Do `work` again and again: every so many milliseconds, and less and less often while the service is away.
   *
   * Work that takes long calls the function that it is given as soon as it is answered.
   * Ends when work returns true, when it raises what does not pass, or when `signal` is aborted, which raises nothing.
   */
  async keepAt(who, work, { every, signal }) {
    let patience = FIRST_WAIT;
    const answered = () => {
      patience = FIRST_WAIT;
      this.report(who, null);
    };
    try {
      for (;;) {
        try {
          const over = await work(answered);
          answered();
          if (over) return;
          await this.wait(every, signal);
        } catch (error) {
          if (!(error instanceof Problem && error.passes)) throw error;
          this.report(who, error);
          await this.wait(patience * (0.75 + Math.random() / 2), signal);
          patience = Math.min(2 * patience, LONGEST_WAIT);
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      this.report(who, null);
      throw error;
    }
  }

  #shown() {
    return this.#troubles.values().next().value;
  }

  #show(problem) {
    document.documentElement.classList.toggle("away", Boolean(problem));
    this.#bar.hidden = !problem;
    if (!problem) return fill(this.#bar);
    const retry = h("button", { type: "button", class: "quiet", click: () => this.hurry() }, "Try now");
    fill(
      this.#bar,
      h("p", {}, h("strong", {}, problem.message), " Asking again by itself; what is shown may be out of date."),
      retry,
    );
  }

  /** Ask again at once. */
  hurry() {
    this.dispatchEvent(new Event("hurry"));
  }
}
