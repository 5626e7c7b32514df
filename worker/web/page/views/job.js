// Following one job: its state every few seconds, its events as they come.

import { Problem, follow, request } from "../lib/api.js";
import { fill, h } from "../lib/dom.js";
import { backToJobs, goesOn, trouble } from "../lib/components.js";
import { Story } from "../lib/timeline.js";
import { View } from "./job_view.js";

const EVERY = 5000;
/** Event type -> status that it brings about. */
const STATUS = {
  job_started: "running",
  training_done: "finished",
  job_failed: "failed",
  job_cancelled: "cancelled",
  job_interrupted: "queued",
};

/** Show the job `id` in `place` until `signal` is aborted. */
export async function showJob(place, id, { connection, signal }) {
  const path = `/v1/jobs/${encodeURIComponent(id)}`;
  const story = new Story();
  const reached = { lastId: "" };
  let view = null;
  let following = false;
  document.title = `${id} - preflight`;
  fill(
    place,
    backToJobs(),
    h("header", { class: "job-head" }, h("h1", { tabindex: "-1" }, id)),
    h("p", { class: "loading", role: "status" }, "Asking for the job…"),
  );

  async function followEvents() {
    following = true;
    const heard = (events) => {
      const fresh = events.filter((event) => story.take(event));
      const turn = fresh.findLast((event) => event.type in STATUS);
      if (turn) {
        view.state = { ...view.state, ...turn, status: STATUS[turn.type] };
        connection.hurry(); // the service knows more of it
      }
      view.draw();
    };
    await connection.keepAt(
      "events",
      async (answered) => {
        const remark = (text) => {
          if (text !== "redis is away") answered();
          else connection.report("events", new Problem(503, "redis_unreachable", "The service cannot reach Redis."));
        };
        await follow(`${path}/events`, reached, {
          signal,
          remark,
          heard: (events) => {
            answered();
            heard(events);
          },
        });
        return true;
      },
      { every: 0, signal },
    );
    following = false;
    connection.hurry(); // the state has the result
  }

  function refused(problem) {
    following = false;
    // Whatever else is refused to followEvents() for good is refused to the next request here as well.
    if (problem.reason === "unreadable_events") connection.report("events", problem);
  }

  signal.addEventListener("abort", () => view?.end());
  await connection.keepAt(
    "job",
    async () => {
      const state = await request(path, { signal });
      const first = !view;
      if (first) {
        const focused = place.contains(document.activeElement);
        view = new View(id, story, path);
        fill(place, view.element);
        if (focused) place.querySelector("h1").focus();
      }
      view.state = state;
      view.draw();
      if (!following && (first || goesOn(state))) followEvents().catch(refused);
    },
    { every: EVERY, signal },
  );
}

/** Show why a job cannot be shown. */
export function showNoJob(place, problem) {
  document.title = "preflight";
  const title = problem.status === 404 ? "There is no such job" : "This job cannot be shown";
  fill(place, backToJobs(), trouble(title, problem.message));
}
