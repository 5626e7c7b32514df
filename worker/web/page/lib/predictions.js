// The file of predictions, and what the confusion matrix and the most confident errors need of it.

const MAX_ERRORS = 12;

/** Return what `predictions.safetensors` says: {samples, right, confusion, errors}; raises RangeError for other files. */
export function evaluate(content) {
  const { probabilities, labels } = parse(content);
  const samples = labels.length;
  const classes = probabilities.length / samples;
  const confusion = Array.from({ length: classes }, () => new Array(classes).fill(0));
  const errors = [];
  for (let sample = 0; sample < samples; sample++) {
    const row = probabilities.subarray(sample * classes, (sample + 1) * classes);
    const predicted = row.indexOf(row.reduce((most, value) => Math.max(most, value)));
    const truth = labels[sample];
    confusion[truth][predicted]++;
    if (predicted !== truth) errors.push({ sample, truth, predicted, confidence: row[predicted], rest: row[truth] });
  }
  errors.sort((one, other) => other.confidence - one.confidence);
  return { samples, right: samples - errors.length, confusion, errors: errors.slice(0, MAX_ERRORS) };
}

/** Return the tensors of the file: a length of 8 bytes, a header in JSON, then the data. */
function parse(content) {
  const view = new DataView(content);
  const start = 8 + Number(view.getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 8, start - 8)));
  const data = (name, type) => {
    const { dtype, data_offsets: [from, to] } = header[name]; // prettier-ignore
    if (dtype !== type) throw new RangeError(`${name} is of ${dtype}, not ${type}`);
    return content.slice(start + from, start + to); // a copy is aligned
  };
  return { probabilities: new Float32Array(data("probabilities", "F32")), labels: new Uint8Array(data("labels", "U8")) };
}
