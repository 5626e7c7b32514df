// Numbers, times and sentences for the reader.

const THIN = "\u202f"; // narrow no-break space between a number and its unit
/** Stands for a missing figure. */
export const NONE = "–";
const SECONDS = [
  [0.9995, 1, "s"],
  [0.9995e-3, 1e-3, "ms"],
  [0, 1e-6, "µs"],
];

/** Three significant digits, or so many decimals: 4.12, 13,508. */
export function number(value, decimals = decimalsOf(value)) {
  if (value && !(Math.abs(value) >= 1e-4 && Math.abs(value) < 1e9)) return value.toExponential(1);
  return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function decimalsOf(value) {
  return value ? Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value))))) : 0;
}

/** A measured duration: 4.12 s, 830 µs. */
export function seconds(value, like = value) {
  const [, size, unit] = SECONDS.find(([least]) => like >= least);
  return `${number(value / size, decimalsOf(like / size))}${THIN}${unit}`;
}

const WAITS = { scheduled: "waits until its time", deferred: "waits for another job", rate_limited: "waits for its turn" };

/** Why a queued job waits, where not for a worker alone. */
export function waitsFor(state) {
  return (state.status === "queued" && WAITS[state.rq_status]) || "";
}

/** A remaining time: 12 s, 3 min 20 s, 5 h 12 min. */
export function duration(value) {
  const whole = Math.round(value);
  if (whole < 60) return `${whole}${THIN}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${THIN}min ${whole % 60}${THIN}s`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)}${THIN}h ${Math.floor((whole % 3600) / 60)}${THIN}min`;
  return `${number(Math.floor(whole / 86400), 0)}${THIN}days`;
}

/** A duration that is known roughly: about 40 s, about 12 min. */
export function roughly(value) {
  if (value < 90) return `about ${Math.max(1, Math.round(value))}${THIN}s`;
  const minutes = Math.round(value / 60);
  return minutes < 90 ? `about ${minutes}${THIN}min` : `about ${Math.floor(minutes / 60)}${THIN}h ${minutes % 60}${THIN}min`;
}

/** The age of a time stamp in its largest unit: 12 s ago. */
export function age(ts) {
  const past = Math.max(0, Date.now() / 1000 - ts);
  if (past < 1) return "now";
  const [size, unit] = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ].find(([least]) => past >= least);
  return `${Math.floor(past / size)}${THIN}${unit} ago`;
}

/** A time stamp in full, in the time zone of the reader: 29 November 2026, 14:03:07 GMT+2. */
export function exactly(ts) {
  return `${new Date(ts * 1000).toLocaleString("en-GB", { dateStyle: "long", timeStyle: "medium" })} ${zone()}`;
}

/** A time stamp of today as 14:03:07, of another day with its date. */
export function clock(ts) {
  const when = new Date(ts * 1000);
  const time = when.toLocaleTimeString("en-GB");
  const today = when.toDateString() === new Date().toDateString();
  return today ? time : `${when.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

/** The time zone of all times, such as GMT+2. */
export function zone() {
  const parts = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" }).formatToParts(new Date());
  return parts.find(({ type }) => type === "timeZoneName").value;
}

/** A fraction of 1: 99.47 %. */
export function percent(share, decimals = 2) {
  return `${(100 * share).toFixed(decimals)}${THIN}%`;
}

/** A deviation: +1.3 %. */
export function deviation(value) {
  const text = Math.abs(100 * value).toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 1 ? 1 : 0 });
  return `${text === "0" ? "±" : value < 0 ? "−" : "+"}${text}${THIN}%`;
}

/** A ratio: 1.52×. */
export function times(value) {
  return `${number(value, value >= 0.1 && value < 10 ? 2 : undefined)}×`;
}

/** Memory in MiB: 412 MiB, 1.62 GiB. */
export function mebibytes(value) {
  return value >= 1023.5 ? `${number(value / 1024)}${THIN}GiB` : `${number(value, 0)}${THIN}MiB`;
}

/** Bytes in the largest unit: 3.2 MB, 1.4 GB. */
export function gigabytes(bytes) {
  const [size, unit] = [
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
  ].find(([least]) => bytes >= least) ?? [1, "bytes"];
  return `${number(bytes / size)}${THIN}${unit}`;
}

/** A count with its noun: 1 trial, 2 trials. */
export function pluralize(count, noun) {
  return `${number(count, 0)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Samples per second: 13,508. */
export function speed(value) {
  return value < 1e9 ? number(value, 0) : number(value);
}

/** A reason code as words: out of memory. */
export function words(code) {
  return code.replaceAll("_", " ");
}

/** A clause of the service as a sentence; an identifier keeps its case: `epochs is 0`, `fashion-mnist is not in ...`. */
export function sentence(clause, field) {
  const text = String(clause);
  const isIdentifier = /^[a-z]*[^a-z\s,;:]/.test(text) || (field && text.startsWith(field));
  const start = isIdentifier ? text.slice(0, 1) : text.slice(0, 1).toUpperCase();
  return text && start + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
