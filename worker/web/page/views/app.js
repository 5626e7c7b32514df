// The page's router: #/ or #/?status=failed shows the jobs, #/jobs/<id> one job, #/models the models with names,
// #/models/<alias> one of them, #/data the imported data.

import { Problem, request } from "../lib/api.js";
import { errorMessage } from "../lib/components.js";
import { Connection } from "../lib/connection.js";
import { fill, h } from "../lib/dom.js";
import { listenToKeys } from "../lib/keyboard.js";
import { setTab } from "../lib/tab.js";
import { showJobs } from "./list/jobs.js";

const main = document.querySelector("main");
/** Address of each view, its code, which all but the list load when they are first opened, and what shows it. */
const VIEWS = [
  [/^\/jobs\/([^/]+)$/, () => import("./job/job.js"), (code, context, id) => code.showJob(main, id, context)],
  [/^\/new$/, () => import("./form/form.js"), (code, context, _, given) => code.showForm(main, given, context)],
  [/^\/compare$/, () => import("./compare/compare.js"), (code, context, _, given) => code.showComparison(main, given.getAll("job"), context)],
  [/^\/data$/, () => import("./data/data.js"), (code, context) => code.showData(main, context)],
  [/^\/data\/(.+)$/, () => import("./data/dataset.js"), (code, context, name) => code.showDataset(main, name, context)],
  [/^\/models$/, () => import("./models/models.js"), (code, context) => code.showModels(main, context)],
  [/^\/models\/(.+)$/, () => import("./models/models.js"), (code, context, alias) => code.showModel(main, alias, context)],
  [/^/, () => ({ showJobs }), (code, context, _, given) => code.showJobs(main, given, context)],
];
const connection = new Connection(document.querySelector("#connection"));
let current = new AbortController();

async function route(moveFocus) {
  current.abort();
  current = new AbortController();
  const { signal } = current;
  connection.clear();
  setTab("preflight");
  const [path, query] = location.hash.slice(1).split("?");
  const [address, load, show] = VIEWS.find(([known]) => known.test(path));
  const name = decoded(path.match(address)[1] ?? "");
  try {
    const code = await loaded(load, signal);
    if (signal.aborted) return;
    const view = show(code, { connection, signal }, name, new URLSearchParams(query));
    if (moveFocus) main.querySelector("h1")?.focus();
    await view;
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Problem)) throw error;
    if (error.reason === "unauthorized") showLocked();
    else fill(main, errorMessage("This view cannot be shown", error.message));
  }
}

/** Return what `load` returns, asked again while the service is away; raises Problem where it was updated. */
async function loaded(load, signal) {
  let code;
  await connection.poll("code", attempt, { every: 0, signal });
  return code;

  async function attempt() {
    try {
      code = await load();
    } catch (error) {
      if (!(error instanceof TypeError)) throw error;
      await request("healthz", { signal }); // raises Problem while the service is away
      throw new Problem(404, "updated", "The service was updated. Reload this page.");
    }
    return true;
  }
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
