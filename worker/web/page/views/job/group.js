// The workers that train a job together: their containers, their speed, and what it gains.

import { facts } from "../../lib/components.js";
import { h } from "../../lib/dom.js";
import { NONE, mebibytes, pluralize, sentence, speed } from "../../lib/format.js";

/** Return the group of a job as a table, by rank; nothing where it has trained alone. */
export function group({ group: current, latest }) {
  if (!current?.members.length) return [];
  const { group_measured: measured } = latest;
  const { members, containers, speeds, message } = current;
  const rows = members.map((name, rank) => row(name, rank, containers.get(name), speeds.get(name)));
  const heads = ["Worker", "Container", "Samples/s alone"].map((name, index) =>
    h(index ? "th.n" : "th", { scope: "col" }, name),
  );
  const table = h("table", h("caption", "Workers by rank"), h("thead", h("tr", heads)), h("tbody", rows));
  return [
    h("p.lead", sentence(message)),
    h("div.wide", { role: "region", tabindex: "0", "aria-label": "Workers" }, table),
    facts([measured && ["Measured", sentence(measured.message)]]),
  ];
}

function row(name, rank, container, alone) {
  const role = h("small", rank ? `rank ${rank}` : "leader");
  const memory = container?.memory === undefined ? "" : `, ${mebibytes(container.memory)}`;
  const size = container && `${cores(container.cores)}${memory}`;
  return h(
    "tr",
    h("th", { scope: "row" }, name, " ", role),
    h("td.n", size ?? NONE),
    h("td.n", alone === undefined ? NONE : speed(alone)),
  );
}

/** A share of cores is a quota: 0.5 cores. */
function cores(count) {
  return Number.isInteger(count) ? pluralize(count, "core") : `${Number(count.toFixed(2))} cores`;
}
