// JSON with exact integers: those that no number holds, such as a seed of 2^63 - 1, are BigInts.
//
// They pass through the browser's JSON as marked strings: Firefox 115, Safari 16 and Chrome 109 have no JSON.rawJSON.

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const INTEGER = /^-?\d+$/;

/** Parse a text; raises SyntaxError. */
export function parseJson(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text); // every number of it is exact
  const mark = newMark();
  const marked = text.replace(TOKEN, (token) => (isRounded(token) ? `"${mark}${token}"` : token));
  const revive = (_name, value) => (isMarked(value, mark) ? BigInt(value.slice(mark.length)) : value);
  return JSON.parse(marked, revive);
}

/** Return the text of a value. */
export function toJson(value, indent) {
  const mark = newMark();
  const text = JSON.stringify(value, (_name, part) => (typeof part === "bigint" ? mark + part : part), indent);
  return text?.replaceAll(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

function isRounded(token) {
  return INTEGER.test(token) && !Number.isSafeInteger(Number(token)) && String(Number(token)) !== token;
}

function isMarked(value, mark) {
  return typeof value === "string" && value.startsWith(mark);
}

/** A text that no job can know, and that has no sign of a regular expression. */
function newMark() {
  return `${Math.random()} `.slice(2);
}
