// Small things that more than one view shows.

import { h, svg } from "./dom.js";

/** What a status looks like beside its word; drawn on 16 by 16, colours are never alone. */
const GLYPHS = {
  queued: ["M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11z"],
  running: ["M8 2.5a5.5 5.5 0 1 1-5.5 5.5", "M8 6a2 2 0 1 0 0 4a2 2 0 1 0 0-4z"],
  finished: ["M3 8.5 6.5 12 13 4.5"],
  failed: ["M4 4 12 12M12 4 4 12"],
  cancelled: ["M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11z", "M4.1 4.1 11.9 11.9"],
};

/** Return a status as glyph and word. */
export function pill(status) {
  const paths = (GLYPHS[status] ?? GLYPHS.queued).map((d) => svg("path", { d }));
  return h(
    "span",
    { class: `pill ${status}` },
    svg("svg", { class: "glyph", viewBox: "0 0 16 16", "aria-hidden": "true" }, paths),
    status,
  );
}

/** Whether more is to be expected of a job. */
export function goesOn(state) {
  return state.status === "queued" || state.status === "running";
}

/** Return the way back from one job to all. */
export function backToJobs() {
  return h("p", { class: "back" }, h("a", { href: "#/" }, "← Jobs"));
}

/** Return a section with its heading. */
export function panel(title, kind, ...children) {
  return h("section", { class: `panel ${kind}` }, h("h2", {}, title), ...children);
}

/** Return names and values, one below the other. */
export function facts(pairs) {
  return h(
    "dl",
    {},
    pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** Return what is shown instead of something that cannot be had. */
export function trouble(title, message, ...more) {
  return h(
    "div",
    { class: "empty trouble", role: "alert" },
    h("h1", { tabindex: "-1" }, title),
    h("p", {}, message),
    ...more,
  );
}
