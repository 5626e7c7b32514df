// Imported data: what is dropped here is imported by a worker; a card for each data set.

import { Problem, request } from "../../lib/api.js";
import { ago, backToJobs, loading } from "../../lib/components.js";
import { confirmDialog, fill, h, setText } from "../../lib/dom.js";
import { gigabytes, number, pluralize, sentence } from "../../lib/format.js";
import { ImportList } from "./imports.js";
import { UploadPanel } from "./upload.js";

const POLL_INTERVAL_MS = 1000;

/** Show the data sets in `place` until `signal` is aborted. */
export async function showData(place, { connection, signal }) {
  document.title = "Data - preflight";
  const heading = h("h1", { tabindex: "-1" }, "Data");
  const error = h("p.bad", { role: "alert" });
  const cards = h("div.datasets");
  const imports = new ImportList({ signal, onEnd: () => connection.retryNow() });
  const upload = new UploadPanel({ signal, onAccepted: (state) => imports.add(state) });
  const room = h("p.note");
  fill(place, backToJobs(), heading, loading("Loading data sets…"));
  heading.focus();
  let shown = "";
  await connection.poll("datasets", refresh, { every: POLL_INTERVAL_MS, signal });

  async function refresh() {
    const found = await request("v1/datasets", { signal });
    imports.update(found.imports, found.read_only);
    upload.setBounds(found);
    setText(room, `${gigabytes(found.used_bytes)} of ${gigabytes(found.most_bytes)} used by uploads and imported data.`);
    const now = JSON.stringify([found.datasets, found.read_only]);
    if (now !== shown) {
      shown = now;
      fill(cards, found.datasets.length ? found.datasets.map((one) => card(one, found.read_only, remove)) : none());
    }
    if (!cards.isConnected)
      fill(place, backToJobs(), heading, error, found.read_only ? null : upload.element, imports.element, cards, room);
  }

  async function remove(name) {
    setText(error, "");
    try {
      if (await removeDataset(name)) connection.retryNow();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      setText(error, problem.message);
    }
  }
}

/** Ask, and have a worker remove a data set or a version; returns whether it was asked for, raises Problem. */
export async function removeDataset(name) {
  const what = name.includes("@") ? "This version" : "All its versions";
  const parts = [h("p", h("code", name), ` will be removed. ${what} and the pictures in it cannot be brought back.`)];
  const asked = { yes: "Remove", no: "Cancel", danger: true };
  if (!(await confirmDialog("Remove this data set?", parts, asked))) return false;
  await request(datasetPath(name), { method: "DELETE" });
  return true;
}

/** Return the path of a data set in the service. */
export function datasetPath(name) {
  return `v1/datasets/${encodeURIComponent(name)}`;
}

/** Return the address of a data set's view. */
export function datasetAddress(name) {
  return `#/data/${encodeURIComponent(name)}`;
}

/** Return the address of the form with a data set in it. */
export function trainAddress(name) {
  return `#/new?${new URLSearchParams({ dataset: name })}`;
}

/** A size as words: 28x28, gray. */
export function shapeOf([channels, height, width]) {
  return `${height}×${width}, ${channels === 1 ? "gray" : "colour"}`;
}

function card({ name, newest, versions, aliases, warnings }, readOnly, remove) {
  const known = aliases.length ? `, also ${aliases.join(", ")}` : "";
  return h(
    "section.panel.dataset",
    h("h2", h("a", { href: datasetAddress(name) }, name)),
    h("p", `${number(newest.samples, 0)} samples, ${newest.classes} classes, ${shapeOf(newest.shape)}`),
    h("p.note", `${pluralize(versions, "version")}${known}; ${newest.dataset} `, when(newest.created_at)),
    warnings.length > 0 && h("p.warn", sentence(warnings[0])),
    h(
      "div.buttons",
      !readOnly && h("a.button.primary", { href: trainAddress(name) }, "Train on it"),
      !readOnly && h("button", { type: "button", "aria-label": `Remove ${name}`, click: () => remove(name) }, "Remove"),
    ),
  );
}

/** A date of the service as its age; the exact one is its title. */
export function when(text) {
  return ago(Date.parse(text) / 1000);
}

function none() {
  return h(
    "div.empty",
    h("h2", "No data set was imported yet"),
    h("p", "Drop a zip above, or run on a worker"),
    h("pre", { tabindex: "0" }, "preflight data add photos ./photos"),
  );
}
