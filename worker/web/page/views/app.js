// The page's router: #/ or #/?status=failed shows the jobs, #/jobs/<id> one job, #/models the models with names,
// #/models/<alias> one of them, #/data the imported data.

import { Problem } from "../lib/api.js";
import { errorMessage } from "../lib/components.js";
import { Connection } from "../lib/connection.js";
import { fill, h } from "../lib/dom.js";
import { listenToKeys } from "../lib/keyboard.js";
import { setTab } from "../lib/tab.js";
import { showComparison } from "./compare/compare.js";
import { showData } from "./data/data.js";
import { showDataset } from "./data/dataset.js";
import { showForm } from "./form/form.js";
import { showJob, showJobError } from "./job/job.js";
import { showJobs } from "./list/jobs.js";
import { showModel, showModels } from "./models/models.js";

const main = document.querySelector("main");
const connection = new Connection(document.querySelector("#connection"));
let current = new AbortController();

async function route(moveFocus) {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  connection.clear();
  setTab("preflight");
  const [path, query] = location.hash.slice(1).split("?");
  const id = jobIdOf(path);
  const given = new URLSearchParams(query);
  try {
    const view = show(path, id, given, { connection, signal });
    if (moveFocus) main.querySelector("h1")?.focus();
    await view;
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Problem)) throw error;
    if (error.reason === "unauthorized") showLocked();
    else if (id === null) fill(main, errorMessage("This cannot be shown", error.message));
    else showJobError(main, id, error);
  }
}

/** Show the view of an address. */
function show(path, id, given, context) {
  if (id !== null) return showJob(main, id, context);
  if (path === "/new") return showForm(main, given, context);
  if (path === "/compare") return showComparison(main, given.getAll("job"), context);
  if (path === "/data") return showData(main, context);
  if (path.startsWith("/data/")) return showDataset(main, decoded(path.slice("/data/".length)), context);
  if (path === "/models") return showModels(main, context);
  if (path.startsWith("/models/")) return showModel(main, decoded(path.slice("/models/".length)), context);
  return showJobs(main, given, context);
}

function jobIdOf(path) {
  const [, id] = path.match(/^\/jobs\/([^/]+)$/) ?? [];
  return id === undefined ? null : decoded(id);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function showLocked() {
  const button = h("button.primary", { type: "button", click: () => route(false) }, "Enter the token");
  fill(main, errorMessage("This service is locked", "Its jobs are shown once the token is entered.", h("p", button)));
}

listenToKeys();
addEventListener("hashchange", () => route(true));
route(false);
