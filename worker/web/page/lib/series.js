// Time series with a bounded number of points, however long a training takes.

const MAX_POINTS = 2000;

/**
 * Points (x, values...); when there are too many, two neighbours become their mean.
 * Points that were trained again after a kill are kept apart, as discarded.
 */
export class Series {
  #points = [];
  #perPoint = 1; // added points that make up one kept point

  /** Add a point; `values` has one number, or null, for each figure of the series. */
  add(x, values) {
    const last = this.#points.at(-1);
    if (last && !last.discarded && x <= last.x) this.rewind(x, { inclusive: true });
    if (last && !last.discarded && last.count < this.#perPoint) merge(last, { x, values, count: 1 });
    else this.#points.push({ x, values: [...values], count: 1, discarded: false });
    if (this.#points.length > MAX_POINTS) this.#thin();
  }

  /** Discard the points after `x`: the training restarts there. */
  rewind(x, { inclusive = false } = {}) {
    const after = this.#points.filter((point) => !point.discarded && (inclusive ? point.x >= x : point.x > x));
    if (!after.length) return;
    for (const point of after) point.discarded = true;
    // A gap separates this discarded piece from the next one.
    const values = after[0].values.map(() => null);
    this.#points.push({ x: after.at(-1).x + 1e-9, values, count: Infinity, discarded: true });
  }

  /** Return [xs, ys] of one figure, ascending; of the current points, or of the discarded ones. */
  line(figure, { discarded = false } = {}) {
    const points = this.#points.filter((point) => point.discarded === discarded).sort((a, b) => a.x - b.x);
    return [points.map((point) => point.x), points.map((point) => point.values[figure])];
  }

  /** The newest point, with x and values; undefined when there is none. */
  get last() {
    return this.#points.findLast((point) => !point.discarded);
  }

  #thin() {
    const kept = [];
    for (const point of this.#points) {
      const before = kept.at(-1);
      const fits = before && before.discarded === point.discarded && before.count + point.count <= 2 * this.#perPoint;
      if (fits) merge(before, point);
      else kept.push(point);
    }
    this.#points = kept;
    this.#perPoint *= 2;
  }
}

/** Make `point` the mean of itself and the next one. */
function merge(point, next) {
  const count = point.count + next.count;
  point.values = point.values.map((value, index) => {
    const other = next.values[index];
    return value === null || other === null ? (value ?? other) : (value * point.count + other * next.count) / count;
  });
  point.x = next.x;
  point.count = count;
}
