// The page's router: #/ or #/?status=failed shows the jobs, #/jobs/<id> one job.

import { Problem } from "../lib/api.js";
import { STATUSES, errorMessage } from "../lib/components.js";
import { Connection } from "../lib/connection.js";
import { fill, h } from "../lib/dom.js";
import { showJob, showJobError } from "./job.js";
import { showJobs } from "./jobs.js";

const main = document.querySelector("main");
const connection = new Connection(document.querySelector("#connection"));
let current = new AbortController();

async function route(moveFocus) {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  connection.clear();
  const [path, query] = location.hash.slice(1).split("?");
  const id = jobIdOf(path);
  const given = new URLSearchParams(query).get("status");
  const status = STATUSES.includes(given) ? given : null;
  try {
    const view =
      id === null ? showJobs(main, status, { connection, signal }) : showJob(main, id, { connection, signal });
    if (moveFocus) main.querySelector("h1")?.focus();
    await view;
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) showLocked();
    else if (id === null) fill(main, errorMessage("The jobs cannot be shown", error.message));
    else showJobError(main, id, error);
  }
}

function jobIdOf(path) {
  const [, id] = path.match(/^\/jobs\/([^/]+)$/) ?? [];
  if (id === undefined) return null;
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

function showLocked() {
  const button = h("button.primary", { type: "button", click: () => route(false) }, "Enter the token");
  fill(main, errorMessage("This service is locked", "Its jobs are shown once the token is entered.", h("p", button)));
}

addEventListener("hashchange", () => route(true));
route(false);
