// Pictures of samples: cut from the grids that the service sends.

import { fetchBlob } from "../../lib/api.js";
import { h } from "../../lib/dom.js";
import { number } from "../../lib/format.js";
import { datasetPath } from "./data.js";

/** Return a canvas for the picture of a sample, which is drawn later. */
export function pictureOf(sample) {
  return h("canvas.picture", { role: "img", "aria-label": `Sample ${number(sample, 0)}` });
}

/** Ask for samples of a version; returns their numbers, the first ones of those asked for, and what draws one. */
export async function fetchSamples(dataset, query, signal) {
  const path = `${datasetPath(dataset)}/samples?${new URLSearchParams(query)}`;
  const { blob, headers } = await fetchBlob(path, { signal });
  const [width, height, columns] = headers.get("x-grid").split(",").map(Number);
  const samples = headers.get("x-samples").split(",").map(Number);
  const grid = await createImageBitmap(blob);
  const draw = (place, canvas) => {
    Object.assign(canvas, { width, height });
    const [x, y] = [(place % columns) * width, Math.floor(place / columns) * height];
    canvas.getContext("2d").drawImage(grid, x, y, width, height, 0, 0, width, height);
  };
  return { samples, draw };
}

/** Draw the pictures of rows with a `sample` and its `canvas`; the service sends as many at a time as it likes. */
export async function drawSamples(dataset, rows, signal) {
  for (let left = rows; left.length; ) {
    const { samples, draw } = await fetchSamples(dataset, { samples: left.map(({ sample }) => sample).join(",") }, signal);
    left.slice(0, samples.length).forEach(({ canvas }, place) => draw(place, canvas));
    left = left.slice(samples.length);
  }
}
