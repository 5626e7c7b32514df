// Models with names: what each alias points to, since when and by whom, and the way back.

import { request } from "../../lib/api.js";
import { ago, backToJobs, datasetLink, facts, jobAddress, jobsWith, loading, panel } from "../../lib/components.js";
import { confirmDialog, fill, h, setText } from "../../lib/dom.js";
import { percent, sentence } from "../../lib/format.js";
import { TryIt } from "../details/try_it.js";

const POLL_INTERVAL_MS = 5000;
/** The alias that a job's button offers. */
const PRODUCTION = "production";

/** Show all aliases in `place` until `signal` is aborted. */
export async function showModels(place, { connection, signal }) {
  document.title = "Models - preflight";
  const error = h("p.bad", { role: "alert" });
  const list = h("div.models");
  const head = h("h1", { tabindex: "-1" }, "Models");
  fill(place, backToJobs(), head, loading("Loading models…"));
  let shown = "";
  await connection.poll("models", refresh, { every: POLL_INTERVAL_MS, signal });

  async function refresh() {
    const [overview, { models }] = await Promise.all([
      request("v1/overview", { signal }),
      request("v1/models", { signal }),
    ]);
    const whole = await Promise.all(
      models.map((one) => (one.current ? request(`v1/models/${encodeURIComponent(one.alias)}`, { signal }) : one)),
    );
    const now = JSON.stringify([overview.read_only, whole]);
    if (now === shown) return;
    shown = now;
    fill(list, whole.length ? whole.map((one) => model(one, overview.read_only, rollBack, tryIt(one, signal))) : none());
    if (!list.isConnected) fill(place, backToJobs(), head, error, list);
  }

  async function rollBack({ alias, history }) {
    const former = returnsTo(history);
    const parts = [h("p", h("code", alias), " will be the model of job ", h("code", former.job_id), " again.")];
    if (!(await confirmDialog("Roll back?", parts, { yes: "Roll back", no: "Cancel" }))) return;
    setText(error, "");
    try {
      const body = { by: "page", expect: history[0].number };
      await request(`v1/models/${encodeURIComponent(alias)}/rollback`, { body });
    } catch (problem) {
      setText(error, problem.message);
    }
    connection.retryNow();
  }
}

/** Return the promotion to which a rollback returns; undefined: there is none. */
function returnsTo(history) {
  const promotion = history.find(({ number }) => number === history[0].former);
  return promotion?.kept ? promotion : undefined;
}

function model(one, readOnly, rollBack, tried) {
  const { alias, current, history, message } = one;
  if (!current) return panel(alias, h("p.bad", sentence(message)));
  const canReturn = !readOnly && returnsTo(history);
  const head = ["", "Job", "Accuracy", "SHA-256", "When", "By", "Why"];
  const rows = history.map((each, index) =>
    h(
      "tr",
      h("td", index === 0 ? h("strong", "in use") : each.action),
      h("td", h("a", { href: jobAddress(each.job_id) }, each.job_id)),
      h("td.n", accuracy(each)),
      h("td", h("code", { title: each.model_sha256 }, each.model_sha256.slice(0, 12))),
      h("td", ago(Date.parse(each.at) / 1000)),
      h("td", each.by),
      h("td", each.why),
    ),
  );
  const table = h("table", h("thead", h("tr", head.map((text) => h("th", text)))), h("tbody", rows));
  return panel(
    alias,
    facts([
      ["Network", h("span", jobsWith("model", current.model), " on ", datasetLink(current.dataset))],
      ["Test accuracy", accuracy(current)],
      ["Asked as", h("code", `POST /v1/models/${alias}/predict`)],
    ]),
    h(
      "p.actions",
      canReturn && h("button", { type: "button", click: () => rollBack(one) }, "Roll back"),
      !readOnly && h("a.button", { href: `#/new?${new URLSearchParams({ init_from: alias, dataset: current.dataset.split("@")[0] })}` }, "Train further…"),
    ),
    tried,
    h("div.wide", { tabindex: "0", role: "group", "aria-label": `History of ${alias}` }, table),
  );
}

/** A canvas to try the model of an alias, made when it is opened. */
function tryIt({ alias }, signal) {
  const open = () => {
    if (details.children.length === 1) details.append(new TryIt(`v1/models/${encodeURIComponent(alias)}`, signal, false).element);
  };
  const details = h("details", { toggle: open }, h("summary", "Try it"));
  return details;
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

/** Ask under which name to use a job's model, and promote it; returns whether that was done, raises Problem. */
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
  if (!(await confirmDialog("Use this model?", parts, { yes: "Use it", no: "Cancel" }))) return false;
  await request(`v1/models/${encodeURIComponent(alias.value)}/promote`, {
    body: { job_id: id, by: "page", why: why.value },
  });
  return true;
}
