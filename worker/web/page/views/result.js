// What came out of a job that has ended.

import { sentence } from "../lib/api.js";
import { copyButton, h } from "../lib/dom.js";
import { facts } from "../lib/components.js";
import { duration, number, percent, seconds, speed } from "../lib/format.js";

/** Return the result of a job, or why there is none; nothing while it goes on. */
export function outcomeOf(state) {
  switch (state.status) {
    case "finished":
      return finished(state);
    case "failed":
      return [
        h("h2", { class: "bad" }, `Failed: ${(state.reason ?? "for an unknown reason").replaceAll("_", " ")}`),
        h(
          "p",
          { class: "said" },
          state.message ? sentence(state.message) : "Nothing was said about it; the worker's log may know.",
        ),
        state.field ? facts([["Field", h("code", {}, state.field)]]) : null,
      ].filter(Boolean);
    case "cancelled":
      return [h("h2", {}, "Cancelled"), h("p", { class: "said" }, sentence(state.message ?? "cancelled on request"))];
  }
  return [];
}

function finished(state) {
  const found = { ...state, ...state.result };
  const { test_accuracy: accuracy, measured_epoch_s: measured, predicted_epoch_s: predicted } = found;
  const stopped = found.stopped_early ? ", stopped early" : "";
  const known = (value, name, words) => value !== undefined && [name, words(value)];
  return [
    h(
      "h2",
      {},
      accuracy === undefined ? "Finished" : percent(accuracy),
      accuracy !== undefined && h("small", {}, "test accuracy"),
    ),
    facts([
      known(found.test_loss, "Test loss", (loss) => number(loss)),
      known(found.train_seconds, "Training took", duration),
      known(found.best_epoch, "Epochs", (best) => `${found.epochs}, the best was ${best}${stopped}`),
      known(measured, "An epoch", (value) =>
        predicted === undefined ? seconds(value) : `${seconds(value)}, ${seconds(predicted, value)} predicted`,
      ),
      known(found.samples_per_s, "Samples/s", speed),
    ]),
    facts([
      known(found.artifact, "Model", where),
      known(found.artifact_url, "Also at", where),
      known(found.onnx, "As ONNX", where),
      known(found.report, "Report", where),
      known(found.model_sha256, "SHA-256", (digest) => copied(digest, `${digest.slice(0, 12)}…`)),
    ]),
  ];
}

/** Return where something lies: a link where a browser can follow it. */
function where(place) {
  const isPage = /^https?:\/\//i.test(place);
  return isPage ? h("a", { href: place, rel: "noopener noreferrer", target: "_blank" }, place) : copied(place, place);
}

function copied(text, shown) {
  const code = h("code", { title: text }, shown);
  return h("span", { class: "copied" }, code, copyButton(text, code));
}
