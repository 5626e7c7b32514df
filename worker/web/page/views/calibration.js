// The plan of a job: in words, how it was found, and whether it kept what it promised.

import { sentence } from "../lib/api.js";
import { h } from "../lib/dom.js";
import { Scale, axis, ratio, sign } from "../lib/forest.js";
import { facts } from "../lib/components.js";
import {
  changes,
  counted,
  deviation,
  mebibytes,
  number,
  planOf,
  planSentence,
  seconds,
  speed,
  times,
} from "../lib/format.js";

/** Where a plan comes from. */
const SOURCES = {
  measured: "Measured in this container, just before the training",
  cache: "From the cache: measured earlier, in a container like this one",
  own: "The job's own",
  kept: "Kept from an earlier attempt",
};
/** Verdict -> its mark, its colour, and what it means where the trial gives no reason. */
const VERDICTS = {
  own: ["square", "own", "the job's own plan, measured first"],
  won: ["diamond", "won", "surely faster"],
  level: ["circle", "open", "not proven faster"],
  lost: ["circle", "open", "slower"],
  dropped: ["down", "open", "surely slower, given up early"],
  rejected: ["cross", "bad", "its gradients differ"],
  failed: ["cross", "bad", "its process was killed or broke"],
  skipped: ["circle", "open", "never run"],
};
/** Why a prediction was missed. */
const CAUSES = {
  noisy: "others disturbed the machine",
  calibration: "the calibration was wrong",
  adapted: "the plan was changed on the way",
};
/** Numbers at an axis, the weightiest first: of those that would touch, it has the first. */
const TIMES = [1, 0.5, 2, 0.8, 1.25, 0.6, 1.6, 0.25, 4, 0.125, 8].map((value) => [value, `${value}×`]);
const DEVIATIONS = [
  [1, "predicted"],
  [1.1, "+10 %"],
  [0.9, "−10 %"],
  [2, "+100 %"],
  [0.5, "−50 %"],
  [1.5, "+50 %"],
  [4, "+300 %"],
  [8, "+700 %"],
];

/** Return the plan of a story in words, and why it was chosen. */
export function plan({ plan: now, latest: { calibration_winner: chosen, resource_limits: container } }) {
  if (!now) return [];
  return [
    h("p", { class: "lead" }, planSentence(now)),
    chosen && h("p", {}, sentence(chosen.why)),
    facts([
      chosen && ["Comes from", SOURCES[chosen.source]],
      chosen?.ratio !== undefined && [
        "Last check",
        `the best plan had ${times(chosen.ratio)} the speed of the job's own, in a fresh process`,
      ],
      chosen?.predicted_epoch_s !== undefined && ["An epoch takes", promised(chosen)],
      chosen?.trials > 0 && ["Search", searched(chosen)],
      chosen?.max_feasible !== undefined && ["Memory fits", `micro-batches of up to ${number(chosen.max_feasible, 0)}`],
      container && ["Container", `${counted(container.cpu_cores, "core")}, ${mebibytes(container.memory_mb)}`],
    ]),
  ].filter(Boolean);
}

function searched({ trials, calibration_seconds: took, import_seconds: imported }) {
  return `${counted(trials, "trial")} in ${seconds(took)}, and ${seconds(imported)} to import torch`;
}

function promised({ predicted_epoch_s: value, predicted_low_s: low, predicted_high_s: high, confidence }) {
  const interval =
    low === undefined || high === undefined ? "" : ` (${seconds(low, value)} to ${seconds(high, value)})`;
  return `${seconds(value)}${interval} as predicted${confidence ? `, confidence ${confidence}` : ""}`;
}

/** Return every trial with its speed against the best plan before it. */
export function calibration(trials) {
  if (!trials.length) return [];
  const measured = trials.filter((trial) => trial.ratio !== undefined);
  const values = measured.flatMap((trial) =>
    [trial.ratio, trial.low, trial.high].filter((value) => value !== undefined),
  );
  const scale = new Scale(values, { least: 0.8, most: 1.25, limit: 8 });
  let best = null;
  const rows = trials.map((trial, index) => {
    const before = best;
    if (best === null || trial.won) best = planOf(trial);
    return trialRow(trial, index + 1, before, scale);
  });
  return [
    h(
      "p",
      { class: "note" },
      "Each plan took turns with the best one before it, in real training steps. ",
      "The mark is how many times as fast it was, the line its 95 % interval.",
    ),
    h(
      "div",
      { class: "forest", role: "list" },
      h("div", { class: "forest-head", "aria-hidden": "true" }, h("span"), axis(scale, TIMES), h("span")),
      rows,
    ),
  ];
}

function trialRow(trial, place, before, scale) {
  const verdict = trial.verdict ?? (trial.won ? "won" : "level");
  const [shape, kind, meaning] = VERDICTS[verdict] ?? VERDICTS.level;
  const what = before === null ? planSentence(trial) : changes(before, planOf(trial));
  const figures = [
    trial.samples_per_s !== undefined && `${speed(trial.samples_per_s)} samples/s`,
    trial.steps > 0 && counted(trial.steps, "step"),
    trial.peak_bytes !== undefined && mebibytes(trial.peak_bytes / 2 ** 20),
  ].filter(Boolean);
  const known = trial.ratio !== undefined;
  const interval =
    trial.low === undefined || trial.high === undefined ? "" : ` (${number(trial.low, 2)} to ${number(trial.high, 2)})`;
  const words = known ? `${times(trial.ratio)}${interval}` : "not compared";
  return h(
    "div",
    { class: `trial ${kind}`, role: "listitem" },
    h(
      "div",
      { class: "what" },
      h("span", { class: "place" }, place),
      h(
        "div",
        {},
        h("strong", {}, (trial.knob ?? "plan").replaceAll("_", "-")),
        h("p", {}, what),
        h("small", {}, figures.join(" · ")),
      ),
    ),
    ratio(scale, { value: trial.ratio, low: trial.low, high: trial.high, shape, kind, words: `${what}: ${words}` }),
    h(
      "div",
      { class: "found" },
      h("p", {}, sign(shape, kind), h("strong", {}, verdict), known && h("span", {}, ` ${words}`)),
      h("small", {}, trial.note || meaning),
    ),
  );
}

/** Return what was predicted beside what was measured. */
export function comparisons(checks) {
  if (!checks.length) return [];
  const values = checks.flatMap((check) =>
    [check.measured_s, check.low_s, check.high_s].map((value) => value / check.predicted_s),
  );
  const scale = new Scale(values.filter(Number.isFinite), { least: 0.88, most: 1.14, limit: 8 });
  return [
    h("p", { class: "note" }, "The line is the 95 % interval of the prediction, the mark what was measured."),
    h(
      "div",
      { class: "forest checks", role: "list" },
      h("div", { class: "forest-head", "aria-hidden": "true" }, h("span"), axis(scale, DEVIATIONS)),
      checks.map((check) => checkRow(check, scale)),
    ),
  ];
}

function checkRow(check, scale) {
  const within = check.measured_s >= check.low_s && check.measured_s <= check.high_s;
  const kind = check.cause ? "bad" : "won";
  const like = check.predicted_s;
  const words =
    `${seconds(check.measured_s, like)} measured, ${seconds(check.predicted_s)} predicted ` +
    `(${seconds(check.low_s, like)} to ${seconds(check.high_s, like)})`;
  return h(
    "div",
    { class: "check", role: "listitem" },
    h(
      "div",
      { class: "what" },
      h("strong", {}, check.whole ? `Epoch ${check.epoch}` : `First ${counted(check.steps, "step")}`),
      h("span", {}, deviation(check.deviation)),
    ),
    ratio(scale, {
      value: check.measured_s / like,
      low: check.low_s / like,
      high: check.high_s / like,
      shape: within ? "diamond" : "circle",
      kind,
      words,
    }),
    h("small", {}, words, check.cause ? `; ${CAUSES[check.cause]}` : ""),
  );
}
