// The trials of a calibration, and its predictions beside the measured times.

import { h } from "../../lib/dom.js";
import { Scale, axis, ratio, sign } from "../../lib/forest.js";
import { deviation, mebibytes, pluralize, speed } from "../../lib/format.js";
import { changes, planOf, planSentence } from "../../lib/plan_text.js";

/** Verdict -> its mark and its colour. */
const MARKS = {
  own: ["square", "own"],
  won: ["diamond", "won"],
  kept: ["square", "open"],
  level: ["circle", "open"],
  lost: ["circle", "open"],
  dropped: ["down", "open"],
  rejected: ["cross", "warn"],
  failed: ["cross", "bad"],
};
/** Tick labels, the most important first. */
const RATIO_TICKS = [1, 0.5, 2, 0.8, 1.25, 0.6, 1.6, 0.25, 4, 0.125, 8].map((value) => [value, `${value}×`]);
const DEVIATION_TICKS = [1, 1.1, 0.9, 2, 0.5, 1.5, 4, 8].map((value) => [
  value,
  value === 1 ? "predicted" : deviation(value - 1),
]);

/** Return every trial with its speed relative to the best plan before it. */
export function trials(events, winner) {
  if (!events.length) return [];
  const confirmed = winner?.ratio_low !== undefined && winner.attempt === events[0].attempt ? confirmationOf(winner) : null;
  const compared = [...events, confirmed ?? {}];
  const values = compared.flatMap(({ ratio: value, low, high }) => (value === undefined ? [] : [value, low, high]));
  const known = values.filter((value) => value !== undefined);
  const scale = new Scale(known, { least: 0.8, most: 1.25, limit: 8 });
  let best = null;
  const rows = events
    .filter((trial) => trial.verdict !== "skipped")
    .map((trial, index) => {
      const before = best;
      if (best === null || trial.won) best = planOf(trial);
      return trialRow(trial, index + 1, before, scale);
    });
  if (confirmed) rows.push(trialRow(confirmed, "✓", planOf(events[0]), scale, best));
  return [
    h(
      "p.note",
      "Each plan was measured in turns with the best one before it, in real training steps. ",
      "The mark is the relative speed, the line its 95 % interval. ",
      "Memory is the peak of the process that measured; the tile above has all of the container. Neither counts the file cache.",
    ),
    h("div.forest", axis(scale, RATIO_TICKS), h("div", { role: "list" }, rows)),
    skipped("details.skipped", events.filter(isWorthless), "not worth a measurement"),
    skipped("details.skipped.unreached", events.filter(isUnreached), "not reached before the search ended"),
  ];
}

/** The confirmation of the best plan against the job's own, as a trial: the figures of the headline. */
function confirmationOf({ ratio, ratio_low: low, ratio_high: high, confidence, proven, phrases }) {
  const verdict = (proven ?? low > 1) ? "won" : "level";
  const said = { speed: phrases.speed, meaning: phrases.proof };
  return { knob: "confirmation", verdict, ratio, low, high, disturbed: confidence === "low", phrases: said };
}

function isWorthless(trial) {
  return trial.verdict === "skipped" && !isUnreached(trial);
}

function isUnreached(trial) {
  return trial.reached === false;
}

/** Return trials that were not run as one line that unfolds. */
function skipped(css, events, why) {
  if (!events.length) return null;
  const names = [...new Set(events.map((trial) => (trial.knob ?? "plan").replaceAll("_", "-")))].join(", ");
  const summary = `${pluralize(events.length, "plan")} ${why}: ${names}`;
  const items = events.map((trial) => h("li", h("strong", (trial.knob ?? "plan").replaceAll("_", "-")), `: ${trial.note}`));
  return h(css, h("summary", summary), h("ul", items));
}

function trialRow(trial, place, before, scale, plan = planOf(trial)) {
  const verdict = trial.verdict ?? (trial.won ? "won" : "level");
  const [shape, kind] = MARKS[verdict] ?? MARKS.level;
  const what = before === null ? planSentence(plan) : changes(before, plan);
  const figures = [
    trial.samples_per_s !== undefined && `${speed(trial.samples_per_s)} samples/s`,
    trial.steps > 0 && pluralize(trial.steps, "step"),
    trial.peak_bytes !== undefined && mebibytes(trial.peak_bytes / 2 ** 20),
  ].filter(Boolean);
  const { ratio: value, low, high, phrases, disturbed: isUnsure } = trial;
  const compared = phrases.speed || "not compared";
  const knob = h("strong", (trial.knob ?? "plan").replaceAll("_", "-"));
  return h(
    `div.trial.${kind}`,
    { role: "listitem" },
    h("div.what", h("span.place", place), h("div", knob, h("p", what), h("small", figures.join(" · ")))),
    ratio(scale, { value, low, high, shape, kind, label: `${what}: ${compared}`, isUnsure }),
    h(
      "div.found",
      h("p", sign(shape, kind), h("strong", verdict), value !== undefined && h("span", ` ${compared}`)),
      h("small", phrases.meaning),
    ),
  );
}

/** Return the predicted times beside the measured ones. */
export function predictions(checks) {
  if (!checks.length) return [];
  const values = checks.flatMap((check) =>
    [check.measured_s, check.low_s, check.high_s].map((value) => value / check.predicted_s),
  );
  const scale = new Scale(values.filter(Number.isFinite), { least: 0.88, most: 1.14, limit: 8 });
  const rows = checks.map((check) => checkRow(check, scale));
  return [
    h("p.note", "The line is the 95 % interval of the prediction, the mark the measured time."),
    h("div.forest.checks", axis(scale, DEVIATION_TICKS), h("div", { role: "list" }, rows)),
  ];
}

function checkRow(check, scale) {
  const { measured_s: measured, predicted_s: predicted, low_s: low, high_s: high } = check;
  const label = check.phrases.found;
  const mark = {
    value: measured / predicted,
    low: low / predicted,
    high: high / predicted,
    shape: measured >= low && measured <= high ? "diamond" : "circle",
    kind: check.cause && check.deviation > 0 ? "warn" : "won",
    label,
  };
  const name = check.whole ? `Epoch ${check.epoch}` : `First ${pluralize(check.steps, "step")}`;
  return h(
    "div.check",
    { role: "listitem" },
    h("div.what", h("strong", name), h("span", deviation(check.deviation))),
    ratio(scale, mark),
    h("small", label, check.seen && `. Prediction was off: ${check.seen}`),
  );
}
