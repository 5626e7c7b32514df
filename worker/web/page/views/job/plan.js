// The plan of a job, and why it was chosen.

import { facts } from "../../lib/components.js";
import { h } from "../../lib/dom.js";
import { mebibytes, number, pluralize, seconds, sentence, speedup, times } from "../../lib/format.js";
import { planSentence } from "../../lib/plan_text.js";

/** Source of a plan -> its text. */
const SOURCES = {
  measured: "Measured in this container before the training",
  cache: "Reused from a calibration in an equal container",
  own: "The job's own",
  kept: "Kept from an earlier attempt",
};

/** Return the current plan of a job in words, and the result of its calibration. */
export function plan({ plan: current, latest }) {
  if (!current) return [];
  const { calibration_winner: chosen, batch_advice: advice, resource_limits: container, processors_shared: share } = latest;
  return [
    h("p.lead", planSentence(current)),
    chosen && h("p", sentence(chosen.why)),
    chosen?.reasons && reasons(chosen.reasons),
    facts([
      chosen && ["Source", SOURCES[chosen.source]],
      chosen?.ratio !== undefined && ["Confirmation", confirmation(chosen)],
      chosen?.predicted_epoch_s !== undefined && ["Epoch time", predictedTime(chosen)],
      chosen?.trials > 0 && ["Calibration", calibrationTime(chosen)],
      chosen?.skipped > 0 && ["Not run", `${pluralize(chosen.skipped, "plan")}; why is among the trials below`],
      chosen?.max_feasible !== undefined && [
        "Memory limit",
        `micro-batches of up to ${number(chosen.max_feasible, 0)}`,
      ],
      advice && ["Larger batches", sentence(advice.message)],
      container && ["Container", `${pluralize(container.cpu_cores, "core")}, ${mebibytes(container.memory_mb)}`],
      share && ["Share", sentence(share.message)],
    ]),
  ];
}

/** What each trial that was adopted changed and gained, as a list that unfolds. */
function reasons(text) {
  return h("details.reasons", h("summary", "Reasons"), h("ul", text.split("; ").map((reason) => h("li", reason))));
}

function confirmation({ ratio, ratio_low: low, ratio_high: high, confidence, doubt, fresh_process: isFresh, at_least: isBound }) {
  const isUnsure = confidence === "low";
  const speed = speedup({ ratio, low, high }, isUnsure ? doubt || "confidence low" : "", "the job's own plan");
  const words = isUnsure ? speed : `${isBound ? "at least " : ""}${speed} the speed of the job's own plan`;
  return `${words}, ${proof(isFresh)}`;
}

/** How the gain was proven; events until 0.18 do not tell. */
export function proof(isFresh) {
  return isFresh === false ? "by the races alone" : "in a fresh process";
}

/** The wall time of the calibration; starting its processes is a part of it. */
function calibrationTime({ trials, calibration_seconds: took, import_seconds: starts }) {
  return `${pluralize(trials, "trial")} in ${seconds(took)}, of which ${seconds(starts, took)} to start processes`;
}

function predictedTime({ predicted_epoch_s: value, predicted_low_s: low, predicted_high_s: high, confidence }) {
  const isBounded = low !== undefined && high !== undefined;
  const interval = isBounded ? ` (${seconds(low, value)} to ${seconds(high, value)})` : "";
  return `${seconds(value)}${interval} predicted${confidence ? `, confidence ${confidence}` : ""}`;
}
