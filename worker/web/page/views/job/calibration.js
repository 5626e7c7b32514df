// The trials of a calibration, and its predictions beside the measured times.

import { h } from "../../lib/dom.js";
import { Scale, axis, ratio, sign } from "../../lib/forest.js";
import { deviation, mebibytes, number, pluralize, seconds, speed, times } from "../../lib/format.js";
import { changes, planOf, planSentence } from "../../lib/plan_text.js";

/** Verdict -> its mark, its colour, and its meaning where the trial has no note. */
const VERDICTS = {
  own: ["square", "own", "the job's own plan, measured first"],
  won: ["diamond", "won", "faster (95 %)"],
  kept: ["square", "open", "not faster, but better in another way"],
  level: ["circle", "open", "not proven faster"],
  lost: ["circle", "open", "slower"],
  dropped: ["down", "open", "slower (95 %), stopped early"],
  rejected: ["cross", "warn", "its gradients differ"],
  failed: ["cross", "bad", "its process failed"],
  skipped: ["circle", "open", "not run"],
};
/** Cause of a wrong prediction -> its text. */
const CAUSES = {
  noisy: "other processes slowed the machine",
  calibration: "the machine was busy during calibration",
  adapted: "the plan was changed during the training",
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
  const rows = events.map((trial, index) => {
    const before = best;
    if (best === null || trial.won) best = planOf(trial);
    return trial.verdict === "skipped" ? null : trialRow(trial, index + 1, before, scale);
  });
  if (confirmed) rows.push(trialRow(confirmed, "✓", planOf(events[0]), scale));
  return [
    h(
      "p.note",
      "Each plan was measured in turns with the best one before it, in real training steps. ",
      "The mark is the relative speed, the line its 95 % interval.",
    ),
    h("div.forest", axis(scale, RATIO_TICKS), h("div", { role: "list" }, rows.filter(Boolean))),
    skipped(events.filter((trial) => trial.verdict === "skipped")),
  ];
}

/** The confirmation of the chosen plan against the job's own, as a trial: the figures of the headline. */
function confirmationOf({ ratio, ratio_low: low, ratio_high: high, confidence, ...plan }) {
  const note = `in a fresh process, against the job's own plan${confidence === "low" ? "; confidence low" : ""}`;
  return { ...plan, knob: "confirmation", verdict: low > 1 ? "won" : "level", ratio, low, high, note };
}

/** Return the trials that were not worth a measurement as one line that unfolds. */
function skipped(events) {
  if (!events.length) return null;
  const names = [...new Set(events.map((trial) => (trial.knob ?? "plan").replaceAll("_", "-")))].join(", ");
  const summary = `${pluralize(events.length, "plan")} not worth a measurement: ${names}`;
  const items = events.map((trial) => h("li", h("strong", (trial.knob ?? "plan").replaceAll("_", "-")), `: ${trial.note}`));
  return h("details.skipped", h("summary", summary), h("ul", items));
}

function trialRow(trial, place, before, scale) {
  const verdict = trial.verdict ?? (trial.won ? "won" : "level");
  const [shape, kind, meaning] = VERDICTS[verdict] ?? VERDICTS.level;
  const what = before === null ? planSentence(trial) : changes(before, planOf(trial));
  const figures = [
    trial.samples_per_s !== undefined && `${speed(trial.samples_per_s)} samples/s`,
    trial.steps > 0 && pluralize(trial.steps, "step"),
    trial.peak_bytes !== undefined && mebibytes(trial.peak_bytes / 2 ** 20),
  ].filter(Boolean);
  const { ratio: value, low, high } = trial;
  const isBounded = low !== undefined && high !== undefined;
  const interval = isBounded ? ` (${number(low, 2)} to ${number(high, 2)})` : "";
  const speedup = value === undefined ? "not compared" : `${times(value)}${interval}`;
  const knob = h("strong", (trial.knob ?? "plan").replaceAll("_", "-"));
  return h(
    `div.trial.${kind}`,
    { role: "listitem" },
    h("div.what", h("span.place", place), h("div", knob, h("p", what), h("small", figures.join(" · ")))),
    ratio(scale, { value, low, high, shape, kind, label: `${what}: ${speedup}` }),
    h(
      "div.found",
      h("p", sign(shape, kind), h("strong", verdict), value !== undefined && h("span", ` ${speedup}`)),
      h("small", trial.note || meaning),
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
  const interval = `${seconds(low, predicted)} to ${seconds(high, predicted)}`;
  const label = `${seconds(measured, predicted)} measured, ${seconds(predicted)} predicted (${interval})`;
  const mark = {
    value: measured / predicted,
    low: low / predicted,
    high: high / predicted,
    shape: measured >= low && measured <= high ? "diamond" : "circle",
    kind: check.cause ? "warn" : "won",
    label,
  };
  const name = check.whole ? `Epoch ${check.epoch}` : `First ${pluralize(check.steps, "step")}`;
  return h(
    "div.check",
    { role: "listitem" },
    h("div.what", h("strong", name), h("span", deviation(check.deviation))),
    ratio(scale, mark),
    h("small", label, check.cause && `. Prediction was off: ${CAUSES[check.cause]}`),
  );
}
