// A comparison as a file.

import { h } from "../../lib/dom.js";
import { METRICS, PLAN, settingRows } from "./tables.js";

/** Return a comparison as CSV: a row for each figure, a column for each run; numbers unrounded. */
export function asCsv(found) {
  const rows = [...METRICS, ...settingRows(found, true).map((row) => ({ ...row, name: `setting ${row.name}` })), ...PLAN];
  const lines = rows.map(({ name, value }) => [name, ...found.jobs.map(value)]);
  return [["run", ...found.jobs.map(({ state }) => state.job_id)], ...lines].map((line) => line.map(cell).join(",")).join("\r\n");
}

/** A spreadsheet would run a text that begins as a formula. */
function cell(value) {
  if (value === undefined || value === null) return "";
  if (typeof value === "number" || typeof value === "bigint") return String(value);
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** Save a text under a name. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text]));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
