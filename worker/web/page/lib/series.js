// A figure over the course of a training, in a bounded number of points however long it takes.

/** Most points of one curve. */
const MOST = 2000;

/**
 * Points (x, values...); when there are too many, two neighbours become their mean.
 * What was trained again after a kill is kept apart, as lost.
 */
export class Curve {
  #points = [];
  #each = 1; // added points that make up one kept point

  /** Add a point; `values` has one number, or null, for each figure of the curve. */
  add(x, values) {
    const last = this.#points.at(-1);
    if (last && !last.lost && x <= last.x) this.goBack(x, { inclusive: true });
    if (last && !last.lost && last.count < this.#each) merge(last, { x, values, count: 1 });
    else this.#points.push({ x, values: [...values], count: 1, lost: false });
    if (this.#points.length > MOST) this.#thin();
  }

  /** Note that the training has gone back to `x`: what was drawn behind it is trained again. */
  goBack(x, { inclusive = false } = {}) {
    const behind = this.#points.filter((point) => !point.lost && (inclusive ? point.x >= x : point.x > x));
    if (!behind.length) return;
    for (const point of behind) point.lost = true;
    // A gap keeps this lost piece apart from the next one.
    const gap = { x: behind.at(-1).x + 1e-9, values: behind[0].values.map(() => null), count: Infinity, lost: true };
    this.#points.push(gap);
  }

  /** Return [xs, ys] of one figure, ascending; of the pieces that count, or of the lost ones. */
  line(figure, { lost = false } = {}) {
    const points = this.#points.filter((point) => point.lost === lost).sort((a, b) => a.x - b.x);
    return [points.map((point) => point.x), points.map((point) => point.values[figure])];
  }

  /** The newest point, with x and values; undefined when there is none. */
  get last() {
    return this.#points.findLast((point) => !point.lost);
  }

  #thin() {
    const kept = [];
    for (const point of this.#points) {
      const before = kept.at(-1);
      const fits = before && before.lost === point.lost && before.count + point.count <= 2 * this.#each;
      if (fits) merge(before, point);
      else kept.push(point);
    }
    this.#points = kept;
    this.#each *= 2;
  }
}

/** Make `point` the mean of itself and the one behind it. */
function merge(point, next) {
  const count = point.count + next.count;
  point.values = point.values.map((value, index) => {
    const other = next.values[index];
    return value === null || other === null ? (value ?? other) : (value * point.count + other * next.count) / count;
  });
  point.x = next.x;
  point.count = count;
}
