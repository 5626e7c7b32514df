// Components that several views show.

import { h, setText, svg } from "./dom.js";
import { age, exactly } from "./format.js";

/** Ages are kept up this often. */
const AGE_MS = 10_000;
/** Icon of a status, on 16 by 16: colour is never the only difference. */
const ICONS = {
  queued: ["M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11z"],
  running: ["M8 2.5a5.5 5.5 0 1 1-5.5 5.5", "M8 6a2 2 0 1 0 0 4a2 2 0 1 0 0-4z"],
  finished: ["M3 8.5 6.5 12 13 4.5"],
  failed: ["M4 4 12 12M12 4 4 12"],
  cancelled: ["M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11z", "M4.1 4.1 11.9 11.9"],
};
/** Every status of a job, in its order. */
export const STATUSES = Object.keys(ICONS);

/** Return a status as icon and word. */
export function statusBadge(status) {
  const paths = (ICONS[status] ?? ICONS.queued).map((d) => svg("path", { d }));
  return h(`span.badge.${status}`, svg("svg.icon", { viewBox: "0 0 16 16", "aria-hidden": "true" }, paths), status);
}

/** Whether more events of a job may follow. */
export function isActive(state) {
  return state.status === "queued" || state.status === "running";
}

/** The share of a training's steps that are done, by a `progress` event or a state: 0 before the first step. */
export function shareDone({ epoch, epochs, step, steps }) {
  return steps && epochs && epoch ? Math.min(1, (epoch - 1 + step / steps) / epochs) : 0;
}

/** Return a link from one job to the list. */
export function backToJobs() {
  return h("p.back", h("a", { href: "#/" }, "← Jobs"));
}

/** Return the address of a job's view. */
export function jobAddress(id) {
  return `#/jobs/${encodeURIComponent(id)}`;
}

/** Return a link to the jobs whose field has a value. */
export function jobsWith(field, value) {
  return h("a", { href: `#/?${new URLSearchParams({ q: `${field}:${value}` })}`, title: `Jobs of this ${field}` }, value);
}

/** Return a link to an imported data set, which has a version in its name; of another one to the jobs that have it. */
export function datasetLink(name) {
  const [own, version] = name.split("@");
  return version ? h("a", { href: `#/data/${encodeURIComponent(own)}`, title: "The data set" }, name) : jobsWith("dataset", name);
}

/** Return a time as its age, which is kept up; the exact one is its title. */
export function ago(ts) {
  const when = new Date(ts * 1000);
  return h("time.ago", { datetime: when.toISOString(), title: exactly(ts), "data-ts": ts }, age(ts));
}

setInterval(() => {
  for (const time of document.querySelectorAll("time.ago")) setText(time, age(Number(time.dataset.ts)));
}, AGE_MS);

/** Return a section with its heading. */
export function panel(title, ...children) {
  return h("section.panel", h("h2", title), ...children);
}

/** Return names and values, one below the other. */
export function facts(pairs) {
  const rows = pairs.filter(Boolean).map(([name, value]) => h("div", h("dt", name), h("dd", value)));
  return h("dl", rows);
}

/** Return the note that something is loading. */
export function loading(text) {
  return h("p.loading", { role: "status" }, text);
}

/** Return an error in place of a view. */
export function errorMessage(title, message, ...more) {
  return h("div.empty", { role: "alert" }, h("h1", { tabindex: "-1" }, title), h("p", message), ...more);
}
