// What is computed of a chart's lines: smoothed values, those that are shown, and the one under the cursor.

/** Return the values between the ends of `zoom`, or all, as [x, y], and the lowest and highest of them. */
export function shown([xs, smooth, , validations, raw], zoom) {
  const [first, last] = zoom ?? [-Infinity, Infinity];
  const points = xs.flatMap((x, index) =>
    x >= first && x <= last
      ? [raw[index], smooth[index], validations[index]].filter(Number.isFinite).map((y) => [x, y])
      : [],
  );
  const values = points.map(([, y]) => y);
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [null, null];
  return { points, low, high };
}

/** Return the index of the value nearest to `index`; null where there is none. */
export function nearest(values, index) {
  for (let away = 0; away < values.length; away++)
    for (const at of [index - away, index + away]) if (Number.isFinite(values[at])) return at;
  return null;
}

/** Return a line as its exponential moving average; `weight` is that of the points before. */
export function smoothed([xs, ys], weight) {
  if (!weight) return [xs, ys];
  let mean = null;
  let total = 0; // of the weights so far: the first points are no averages of zeros
  const means = ys.map((y) => {
    if (!Number.isFinite(y)) return y;
    total = total * weight + (1 - weight);
    mean = (mean ?? 0) * weight + y * (1 - weight);
    return mean / total;
  });
  return [xs, means];
}
