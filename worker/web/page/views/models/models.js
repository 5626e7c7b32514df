// Models with names: the list of aliases, and a page for each: try it, its history and the way back.

import { request } from "../../lib/api.js";
import { ago, backToJobs, datasetLink, facts, jobAddress, jobsWith, loading, panel } from "../../lib/components.js";
import { confirmDialog, fill, h, setText } from "../../lib/dom.js";
import { percent, sentence } from "../../lib/format.js";
import { TryIt } from "../details/try_it.js";

const POLL_INTERVAL_MS = 5000;
/** The alias that a job's button offers. */
const PRODUCTION = "production";

/** Return the address of an alias's page. */
export function modelAddress(alias) {
  return `#/models/${encodeURIComponent(alias)}`;
}

/** Show all aliases in `place` until `signal` is aborted. */
export async function showModels(place, { connection, signal }) {
  document.title = "Models - preflight";
  const heading = h("h1", { tabindex: "-1" }, "Models");
  fill(place, backToJobs(), heading, loading("Loading models…"));
  let shown = "";
  await connection.poll("models", refresh, { every: POLL_INTERVAL_MS, signal });

  async function refresh() {
    const { models } = await request("v1/models", { signal });
    const now = JSON.stringify(models);
    if (now === shown) return;
    shown = now;
    fill(place, backToJobs(), heading, models.length ? h("div.models", listed(models)) : none());
  }
}

function listed(models) {
  const rows = models.map(({ alias, current, message }) =>
    current
      ? h("tr", h("td", h("a", { href: modelAddress(alias) }, alias)), cells(current))
      : h("tr", h("td", alias), h("td.bad", { colspan: 6 }, sentence(message))),
  );
  return table(["Name", ...COLUMNS], rows, "Models with names");
}

/** Show the page of an alias in `place` until `signal` is aborted. */
export async function showModel(place, alias, { connection, signal }) {
  document.title = `${alias} - preflight`;
  const path = modelPath(alias);
  const back = h("p.back", h("a", { href: "#/models" }, "← Models"));
  const heading = h("h1", { tabindex: "-1" }, alias);
  const error = h("p.bad", { role: "alert" });
  const [buttons, what, history] = [h("div.actions"), h("div"), h("div")];
  let tried = new TryIt(path, signal).element;
  fill(place, back, heading, loading("Loading the model…"));
  heading.focus();
  let [shown, shape] = ["", ""];
  await connection.poll("model", refresh, { every: POLL_INTERVAL_MS, signal });

  async function refresh() {
    const [{ read_only: readOnly }, found] = await Promise.all([
      request("v1/overview", { signal }),
      request(path, { signal }),
    ]);
    const now = JSON.stringify([readOnly, found]);
    if (now === shown) return;
    shown = now;
    fill(buttons, ...(readOnly ? [] : actions(found)));
    fill(what, facts([
      ["Job", h("a", { href: jobAddress(found.current.job_id) }, found.current.job_id)],
      ["Network", h("span", jobsWith("model", found.current.model), " on ", datasetLink(found.current.dataset))],
      ["Test accuracy", accuracy(found.current)],
      ["Asked as", h("code", `POST /${path}/predict`)],
    ]));
    const rows = found.history.map((one, index) => h("tr", h("td", index ? one.action : h("strong", "in use")), cells(one)));
    fill(history, table(["", ...COLUMNS], rows, `History of ${alias}`));
    if (shape !== String(found.shape)) {
      const next = new TryIt(path, signal, found.shape ?? undefined).element;
      tried.replaceWith(next);
      [tried, shape] = [next, String(found.shape)];
    }
    if (!what.isConnected)
      fill(place, back, heading, error, buttons, h("div.models", panel("In use", what), tried, panel("History", history)));
  }

  function actions({ current, history: all }) {
    const former = returnsTo(all);
    const further = new URLSearchParams({ init_from: alias, dataset: current.dataset.split("@")[0] });
    return [
      h("a.button", { href: `#/new?${further}` }, "Train further…"),
      former && h("button", { type: "button", click: () => rollBack(former, current.number) }, "Roll back…"),
      h("button", { type: "button", click: remove }, "Remove…"),
    ];
  }

  async function rollBack(former, number) {
    const parts = [h("p", h("code", alias), " will be the model of job ", h("code", former.job_id), " again.")];
    if (await confirmDialog("Roll back?", parts, { yes: "Roll back", no: "Cancel" }))
      await change(`${path}/rollback`, { body: { by: "page", expect: number } });
  }

  async function remove() {
    const parts = [
      h("p", "Requests for ", h("code", alias), " are refused from then on, and its history is deleted. The jobs and their models stay."),
    ];
    if (!(await confirmDialog("Remove this name?", parts, { yes: "Remove", no: "Cancel", danger: true }))) return;
    await change(path, { method: "DELETE" });
  }

  async function change(address, options) {
    setText(error, "");
    try {
      await request(address, options);
      if (options.method === "DELETE") location.hash = "#/models";
      else connection.retryNow();
    } catch (problem) {
      setText(error, problem.message);
      connection.retryNow();
    }
  }
}

function modelPath(alias) {
  return `v1/models/${encodeURIComponent(alias)}`;
}

/** Return the promotion to which a rollback returns; undefined: there is none. */
function returnsTo(history) {
  const promotion = history.find(({ number }) => number === history[0].former);
  return promotion?.kept ? promotion : undefined;
}

const COLUMNS = ["Job", "Accuracy", "SHA-256", "When", "By", "Why"];

/** The cells of a promotion, below `COLUMNS`. */
function cells(one) {
  return [
    h("td", h("a", { href: jobAddress(one.job_id) }, one.job_id)),
    h("td.n", accuracy(one)),
    h("td", h("code", { title: one.model_sha256 }, one.model_sha256.slice(0, 12))),
    h("td", ago(Date.parse(one.at) / 1000)),
    h("td", one.by),
    h("td", one.why),
  ];
}

function table(head, rows, label) {
  const whole = h("table", h("thead", h("tr", head.map((text) => h("th", text)))), h("tbody", rows));
  return h("div.wide", { tabindex: "0", role: "group", "aria-label": label }, whole);
}

function accuracy({ test_accuracy: value }) {
  return value === null || value === undefined ? "unknown" : percent(value);
}

function none() {
  return h(
    "div.empty",
    h("h2", "No model has a name yet"),
    h("p", `Open a finished job and press "Use as ${PRODUCTION}", or run`),
    h("pre", { tabindex: "0" }, `preflight models promote JOB --as ${PRODUCTION}`),
  );
}

/** Ask under which name to use a job's model, and promote it; returns the name, or nothing; raises Problem. */
export async function promoteJob(id) {
  const alias = h("input", { id: "promote-alias", value: PRODUCTION, maxlength: 64, required: true });
  const why = h("input", { id: "promote-why", maxlength: 1000, placeholder: "optional" });
  const parts = [
    h("p", "Requests for this name are answered by the model of ", h("code", id), " from then on."),
    h("label", { for: "promote-alias" }, "Name"),
    alias,
    h("label", { for: "promote-why" }, "Why"),
    why,
  ];
  if (!(await confirmDialog("Use this model?", parts, { yes: "Use it", no: "Cancel" }))) return undefined;
  await request(`${modelPath(alias.value)}/promote`, { body: { job_id: id, by: "page", why: why.value } });
  return alias.value;
}
