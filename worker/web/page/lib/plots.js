// uPlot, which draws the curves: loaded with the first view that has some.

import { Problem, addressOf } from "./api.js";
import { h } from "./dom.js";

let loading = null;

/** Load uPlot as the global that it is; raises Problem. */
export function loadPlots() {
  loading ??= load().catch((problem) => {
    loading = null;
    throw problem;
  });
  return loading;
}

async function load() {
  await new Promise((resolve, reject) => {
    const fail = () => reject(new Problem(0, "unreachable", "The service does not answer."));
    document.head.append(h("script", { src: addressOf("page/vendor/uPlot.iife.min.js"), load: resolve, error: fail }));
  });
}
