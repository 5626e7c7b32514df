// Numbers, times and plans as a person reads them.

const THIN = "\u202f"; // between a number and its unit; no line is broken there
/** Where there is no figure. */
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

/** A duration to wait for: 12 s, 3 min 20 s, 5 h 12 min. */
export function duration(value) {
  const whole = Math.round(value);
  if (whole < 60) return `${whole}${THIN}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${THIN}min ${whole % 60}${THIN}s`;
  if (whole < 48 * 3600) return `${Math.floor(whole / 3600)}${THIN}h ${Math.floor((whole % 3600) / 60)}${THIN}min`;
  return `${number(Math.floor(whole / 86400), 0)}${THIN}days`;
}

/** How long ago a moment was, in its largest unit: 12 s ago. */
export function ago(ts) {
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

/** A moment of today as 14:03:07, of another day with its date. */
export function moment(ts) {
  const when = new Date(ts * 1000);
  const time = when.toLocaleTimeString("en-GB");
  const today = when.toDateString() === new Date().toDateString();
  return today ? time : `${when.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}

/** A share: 99.12 %. */
export function percent(share, decimals = 2) {
  return `${(100 * share).toFixed(decimals)}${THIN}%`;
}

/** A deviation: +1.3 %. */
export function deviation(value) {
  const text = Math.abs(100 * value).toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 1 ? 1 : 0 });
  return `${text === "0" ? "±" : value < 0 ? "−" : "+"}${text}${THIN}%`;
}

/** How many times: 1.52×. */
export function times(value) {
  return `${number(value, value >= 0.1 && value < 10 ? 2 : undefined)}×`;
}

/** MiB: 412 MiB, 1.62 GiB. */
export function mebibytes(value) {
  return value >= 1023.5 ? `${number(value / 1024)}${THIN}GiB` : `${number(value, 0)}${THIN}MiB`;
}

/** 1 trial, 2 trials. */
export function counted(count, noun) {
  return `${number(count, 0)} ${noun}${count === 1 ? "" : "s"}`;
}

/** Samples a second: 13,508. */
export function speed(value) {
  return value < 1e9 ? number(value, 0) : number(value);
}

/** The parts of a plan that events tell, and what they are called. */
const PARTS = {
  threads: (value) => counted(value, "thread"),
  interop: (value) => `${counted(value, "inter-op thread")}`,
  micro_batch: (value) => `micro-batches of ${number(value, 0)}`,
  eval_batch: (value) => `evaluation batches of ${number(value, 0)}`,
  precision: (value) => value,
  memory_format: (value) => `${value.replace("_", "-")} images`,
  allocator: (value) => (value === "tcmalloc" ? value : `${value} malloc`),
  loader_workers: (value) => (value ? counted(value, "loader worker") : "no loader workers"),
  affinity: (value) => (value === "pinned" ? "pinned to its processors" : "free to move between processors"),
  compile: (value) => (value ? "compiled" : "not compiled"),
  device: (value) => `on ${value}`,
};

/** The part of an event that is a plan. */
export function planOf(event) {
  return Object.fromEntries(
    Object.keys(PARTS)
      .filter((name) => name in event)
      .map((name) => [name, event[name]]),
  );
}

/** A plan as a sentence. */
export function planSentence(plan) {
  const rest = [
    plan.affinity === "pinned" && PARTS.affinity("pinned"),
    plan.loader_workers > 0 && `batches gathered by ${PARTS.loader_workers(plan.loader_workers)}`,
    plan.compile && "the model compiled",
  ].filter(Boolean);
  const said = [
    `${PARTS.threads(plan.threads)} in ${plan.precision}`,
    PARTS.memory_format(plan.memory_format),
    PARTS.allocator(plan.allocator),
    PARTS.micro_batch(plan.micro_batch),
    ...rest,
  ];
  return `Trains with ${said.slice(0, -1).join(", ")} and ${said.at(-1)}${plan.device === "cuda" ? ", on a GPU" : ""}.`;
}

/** What a plan does differently from another. */
export function changes(before, after) {
  const names = Object.keys(PARTS).filter((name) => name in after && after[name] !== before[name]);
  return names.map((name) => PARTS[name](after[name])).join(", ") || "as before";
}
