// The plan of a job, and why it was chosen.

import { facts } from "../../lib/components.js";
import { h, marked } from "../../lib/dom.js";
import { mebibytes, number, pluralize, seconds, sentence } from "../../lib/format.js";
import { planSentence } from "../../lib/plan_text.js";

/** Return the current plan of a job in words, and the result of its calibration. */
export function plan({ plan: current, latest }) {
  if (!current) return [];
  const { calibration_winner: chosen, batch_advice: advice, resource_limits: container, processors_shared: share } = latest;
  return [
    h("p.lead", planSentence(current)),
    chosen && h("p", sentence(chosen.why)),
    chosen?.reasons && reasons(chosen.reasons),
    facts([
      chosen && ["Source", chosen.phrases.source],
      chosen?.phrases.confirmation && ["Confirmation", chosen.phrases.confirmation],
      chosen?.phrases.prediction && ["Epoch time", predictedTime(chosen)],
      chosen?.trials > 0 && ["Calibration", calibrationTime(chosen)],
      chosen?.skipped > 0 && ["Not run", `${pluralize(chosen.skipped, "plan")}; why is among the trials below`],
      chosen?.max_feasible !== undefined && [
        "Memory limit",
        `micro-batches of up to ${number(chosen.max_feasible, 0)}`,
      ],
      advice && ["Larger batches", h("span", marked(sentence(advice.message)))],
      container && ["Container", `${pluralize(container.cpu_cores, "core")}, ${mebibytes(container.memory_mib)}`],
      share && ["Share", sentence(share.message)],
    ]),
  ];
}

/** What each trial that was adopted changed and gained, as a list that unfolds. */
function reasons(text) {
  return h("details.reasons", h("summary", "Reasons"), h("ul", text.split("; ").map((reason) => h("li", reason))));
}

/** The wall time of the calibration; starting its processes is a part of it. */
function calibrationTime({ trials, calibration_s: took, import_s: starts }) {
  return `${pluralize(trials, "trial")} in ${seconds(took)}, of which ${seconds(starts, took)} to start processes`;
}

function predictedTime({ phrases, confidence }) {
  return `${phrases.prediction} predicted${confidence ? `, confidence ${confidence}` : ""}`;
}
