// One job: polls its state and follows its events.

import { Problem, follow, request } from "../../lib/api.js";
import { backToJobs, errorMessage, isActive, jobAddress, loading } from "../../lib/components.js";
import { fill, h } from "../../lib/dom.js";
import { JobTimeline } from "../../lib/timeline.js";
import { JobView } from "./view.js";

const POLL_INTERVAL_MS = 5000;
/** A job whose events are late, or are kept no more, is drawn without them after these. */
const MAX_WAIT_MS = 1500;
/** A job that is being deleted is asked for again after these. */
const DELETING_MS = 700;

/** Show the job `id` in `place` until `signal` is aborted. */
export async function showJob(place, id, { connection, signal }) {
  const path = `v1/jobs/${encodeURIComponent(id)}`;
  const timeline = new JobTimeline();
  const cursor = { lastId: "" };
  const view = new JobView(id, timeline, path, () => connection.retryNow());
  let catchUp;
  const caughtUp = new Promise((resolve) => (catchUp = resolve));
  let isFollowing = false;
  document.title = `${id} - preflight`;
  fill(place, backToJobs(), h("header.job-head", h("h1", { tabindex: "-1" }, id)), loading("Loading job…"));

  function onEvents(events) {
    const applied = events.filter((event) => timeline.apply(event));
    const change = applied.findLast((event) => event.status_after);
    if (change) {
      view.state = { ...view.state, ...change, status: change.status_after };
      connection.retryNow(); // the service knows more about the job
    }
    settleCaughtUp();
    view.draw();
  }

  /** The view is drawn in one go once the events have reached the state: drawn in pieces, it would move below a reader. */
  function settleCaughtUp() {
    const { attempt, status, updated_at: updatedAt } = view.state;
    const seenUntil = timeline.newest?.ts ?? -Infinity;
    const isUpToDate = seenUntil >= (status === "queued" ? 0 : updatedAt); // a queued job was updated by its producer
    if (!attempt || !isFollowing || isUpToDate) catchUp();
  }

  async function followOnce(onAnswer) {
    const onComment = (text) => {
      if (text !== "redis is away") onAnswer();
      else connection.report("events", new Problem(503, "redis_unreachable", "The service cannot reach Redis."));
    };
    const onAnswered = (events) => {
      onAnswer();
      onEvents(events);
    };
    await follow(`${path}/events?thin=true`, cursor, { signal, onComment, onEvents: onAnswered });
    return true;
  }

  async function followEvents() {
    isFollowing = true;
    try {
      await connection.poll("events", followOnce, { every: 0, signal });
      connection.retryNow(); // the state now has the result
    } catch (problem) {
      // Every other permanent error of the stream is raised by the next request for the state, too.
      if (problem.reason === "unreadable_events") connection.report("events", problem);
    }
    isFollowing = false;
    settleCaughtUp();
  }

  async function refresh() {
    const state = await request(path, { signal }).catch((problem) => {
      if (!view.state?.deleting || problem.status !== 404) throw problem;
      return null; // a worker has deleted it
    });
    if (!state) return location.replace("#/");
    if (state.job_id !== id) return location.replace(jobAddress(state.job_id)); // the given id is RQ's
    const isFirst = !view.state;
    view.state = state;
    if (!isFollowing && (isFirst || isActive(state))) followEvents();
    if (!view.overview || state.status === "queued") view.overview = await request("v1/overview", { signal });
    if (state.deleting) setTimeout(() => connection.retryNow(), DELETING_MS);
    if (view.element.isConnected) return view.draw();
    settleCaughtUp();
    setTimeout(catchUp, MAX_WAIT_MS);
    await caughtUp;
    signal.throwIfAborted();
    const hadFocus = place.contains(document.activeElement);
    fill(place, view.element);
    view.drawNow(); // empty panels would be painted, and move what is below them once they are filled
    if (hadFocus) place.querySelector("h1").focus();
  }

  signal.addEventListener("abort", () => view.close());
  try {
    await connection.poll("job", refresh, { every: POLL_INTERVAL_MS, signal });
  } catch (problem) {
    if (signal.aborted || !(problem instanceof Problem) || problem.reason === "unauthorized") throw problem;
    showProblem(place, id, problem);
  }
}

/** Show why a job cannot be shown. */
function showProblem(place, id, problem) {
  document.title = "preflight";
  const missing = [h("code", id), " is not in this queue; finished jobs are kept for a week."];
  const message =
    problem.status === 404
      ? errorMessage("There is no such job", missing)
      : errorMessage("This job cannot be shown", problem.message);
  fill(place, backToJobs(), message);
}
