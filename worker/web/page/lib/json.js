// JSON with exact integers: those that no number holds, such as a seed of 2^63 - 1, are BigInts.

/** Parse a text; raises SyntaxError. A browser that does not tell the source of a value rounds. */
export function parseJson(text) {
  return JSON.parse(text, (_name, value, { source = "" } = {}) => (isRounded(value, source) ? BigInt(source) : value));
}

function isRounded(value, source) {
  return typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source) && String(value) !== source;
}

/** Return the text of a value. */
export function toJson(value, indent) {
  return JSON.stringify(value, (_name, part) => (typeof part === "bigint" ? JSON.rawJSON(part) : part), indent);
}
