// Where the time of a job went: waiting, preparing, calibrating, training, reporting.

import { isActive } from "../../lib/components.js";
import { h } from "../../lib/dom.js";
import { duration, seconds as brief } from "../../lib/format.js";

/** Return the times of the newest attempt, and their sum. */
export function times(state, { marks, latest, attempt }) {
  if (!marks.started) return [];
  const until = isActive(state) ? marks.newest : Math.max(marks.reported ?? 0, marks.newest);
  const prepared = marks.prepared ?? until;
  const calibrated = marks.calibrated ?? until;
  const trained = marks.trained ?? until;
  const parts = [
    ["waiting", latest.job_started?.waited_s ?? 0],
    ["preparing", prepared - marks.started],
    ["calibrating", calibrated - prepared],
    ["training", trained - calibrated],
    ["reporting", isActive(state) && !marks.reported ? 0 : until - trained],
  ].filter(([, seconds]) => seconds >= 0.05);
  const total = parts.reduce((sum, [, seconds]) => sum + seconds, 0);
  if (!parts.length) return [];
  const bars = parts.map(([name, seconds]) => {
    const bar = h(`i.${name}`, { title: `${name}: ${format(seconds)}` });
    bar.style.flexGrow = seconds;
    return bar;
  });
  const rows = parts.map(([name, seconds]) =>
    h("div", h("dt", h(`i.${name}`, { "aria-hidden": "true" }), name), h("dd", format(seconds))),
  );
  const whole = h("div.whole", h("dt", attempt > 1 ? `total of attempt ${attempt}` : "total"), h("dd", format(total)));
  return [h("div.split", { "aria-hidden": "true" }, bars), h("dl.times", rows, whole)];
}

function format(value) {
  return value < 100 ? brief(value) : duration(value);
}
