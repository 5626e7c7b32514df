// The result of a job that has ended.

import { Problem, request } from "../../lib/api.js";
import { facts, jobAddress } from "../../lib/components.js";
import { copyButton, fill, h, marked } from "../../lib/dom.js";
import { duration, number, percent, seconds, sentence, speed, words } from "../../lib/format.js";

/** Return the result of a job or the reason of its failure; nothing while it is active. */
export function result(state) {
  const message = h("p.said", sentence(state.message ?? "no reason is stored; the worker's log may have one", state.field));
  switch (state.status) {
    case "finished":
      return finished(state);
    case "failed": {
      const heading = h("h2.bad", state.reason ? `Failed: ${words(state.reason)}` : "Failed");
      const isNamed = !state.field || state.message?.includes(state.field);
      return [heading, message, !isNamed && facts([["Field", h("code", state.field)]]), state.reason && advice(state.reason)];
    }
    case "cancelled":
      return [h("h2", "Cancelled"), state.message ? message : h("p.said", "Cancelled on request.")];
  }
  return [];
}

/** Return what the runbook says of a failure, read when it is opened. */
function advice(reason) {
  const body = h("div");
  const element = h("details.advice", { toggle: read }, h("summary", "What to do"), body);
  async function read() {
    if (!element.open || body.childElementCount) return;
    try {
      const { text } = await request(`v1/advice/${encodeURIComponent(reason)}`);
      fill(body, text.split(/\n\n+/).map(paragraph));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      fill(body, h("p.said", error.message));
    }
  }
  return element;
}

/** Return a paragraph or list of Markdown: only code is marked, and a link is its words. */
function paragraph(text) {
  const plain = text.replace(/\[([^\]]+)\]\([^)]*\)/g, "$1");
  if (!plain.startsWith("- ")) return h("p", marked(plain));
  return h("ul", plain.slice(2).split(/\n- /).map((item) => h("li", marked(item))));
}

function finished(state) {
  const found = { ...state, ...state.result };
  const { test_accuracy: accuracy, measured_epoch_s: measured } = found;
  const fact = (value, name, format) => value !== undefined && [name, format(value)];
  const stopped = found.stopped_early ? ", stopped early" : "";
  return [
    accuracy === undefined ? h("h2", "Finished") : h("h2", percent(accuracy), h("small", "test accuracy")),
    facts([
      fact(found.macro_f1, "Macro F1", (f1) => percent(f1)),
      fact(found.test_loss, "Test loss", (loss) => number(loss)),
      fact(found.train_s, "Training time", duration),
      fact(found.best_epoch, "Epochs", (best) => `${found.epochs}, best was ${best}${stopped}`),
      fact(found.train_steps, "Steps", (steps) => number(steps, 0)),
      fact(measured, "Epoch time", seconds),
      fact(found.samples_per_s, "Samples/s", speed),
      fact(found.parent ?? undefined, "Started from", parent),
    ]),
    facts([
      fact(found.artifact, "Model", location),
      fact(found.artifact_url, "Upload", location),
      fact(found.onnx, "ONNX", location),
      fact(found.report, "Report", location),
      fact(found.model_sha256, "SHA-256", (digest) => copyable(digest, `${digest.slice(0, 12)}…`)),
    ]),
  ];
}

/** The model whose weights the training started from, and what that was trained on. */
function parent({ init_from: name, job_id: id, dataset, new_head: isNewHead }) {
  const words = [dataset && `trained on ${dataset}`, isNewHead && "the last layer drawn anew"].filter(Boolean).join(", ");
  return h("span", h("a", { href: jobAddress(id) }, name === id ? id : `${name}: job ${id}`), words && ` (${words})`);
}

/** Return a link where a browser can follow it, else the path to copy. */
function location(path) {
  const isUrl = /^https?:\/\//i.test(path);
  return isUrl ? h("a", { href: path, rel: "noopener noreferrer", target: "_blank" }, path) : copyable(path, path);
}

function copyable(text, shown) {
  const code = h("code", { title: text }, shown);
  return h("span.copied", code, copyButton(text, code));
}
