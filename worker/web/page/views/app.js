// The page: which view the address names, and what happens when it cannot be shown.

import { Problem } from "../lib/api.js";
import { Connection } from "../lib/connection.js";
import { fill, h } from "../lib/dom.js";
import { showJob, showNoJob } from "./job.js";
import { STATUSES, showJobs } from "./jobs.js";
import { trouble } from "../lib/components.js";

const main = document.querySelector("main");
const connection = new Connection(document.querySelector("#connection"));
let leave = new AbortController();

/** Show what the address names: #/ or #/?status=failed or #/jobs/<id>. */
async function enter(moved) {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  connection.clear();
  const [path, query] = location.hash.slice(1).split("?");
  const id = jobIn(path);
  const asked = new URLSearchParams(query).get("status");
  const status = STATUSES.includes(asked) ? asked : null;
  try {
    const shown =
      id === null ? showJobs(main, status, { connection, signal }) : showJob(main, id, { connection, signal });
    if (moved) main.querySelector("h1")?.focus();
    await shown;
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Problem)) throw error;
    if (error.status === 401) showLocked();
    else if (id === null) fill(main, trouble("The jobs cannot be shown", error.message));
    else showNoJob(main, error);
  }
}

function jobIn(path) {
  const [, id] = path.match(/^\/jobs\/([^/]+)$/) ?? [];
  if (id === undefined) return null;
  try {
    return decodeURIComponent(id);
  } catch {
    return id;
  }
}

function showLocked() {
  const button = h("button", { type: "button", class: "primary", click: () => enter(false) }, "Enter the token");
  fill(main, trouble("This service is locked", "Its jobs are shown to whoever has its token.", h("p", {}, button)));
}

addEventListener("hashchange", () => enter(true));
enter(false);
