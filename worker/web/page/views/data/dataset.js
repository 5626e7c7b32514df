// One data set: its classes, samples, what is wrong with it, its versions, and the jobs that used it.

import { Problem, request } from "../../lib/api.js";
import { facts, jobAddress, loading, panel, statusBadge } from "../../lib/components.js";
import { fill, h, setText, svg } from "../../lib/dom.js";
import { number, percent, sentence } from "../../lib/format.js";
import { Changes } from "./changes.js";
import { datasetAddress, datasetPath, removeDataset, shapeOf, trainAddress, when } from "./data.js";
import { IssuePanel } from "./issues.js";
import { pairPanels } from "./pairs.js";
import { SampleGrid } from "./samples.js";

const SIDES = ["train", "validation", "test"];
const FIRST_CLASSES = 30;
const MOST_JOBS = 10;

/** Show a data set, or a version of it as `photos@2`, in `place`. */
export async function showDataset(place, name, { connection, signal }) {
  document.title = `${name} - preflight`;
  const back = h("p.back", h("a", { href: "#/data" }, "← Data"));
  const heading = h("h1", { tabindex: "-1" }, name);
  fill(place, back, heading, loading("Loading the data set…"));
  heading.focus();
  await connection.poll("dataset", load, { every: 0, signal });

  async function load() {
    const [found, { read_only: readOnly }] = await Promise.all([
      request(datasetPath(name), { signal }),
      request("v1/overview", { signal }),
    ]);
    const jobs = h("div");
    const isNewest = found.chosen.dataset === found.newest.dataset;
    const changes = readOnly || !isNewest ? null : new Changes(found.newest, found.classes);
    fill(place, back, heading, ...parts(found, jobs, changes, { signal, readOnly }));
    showJobsOf(jobs, found.name, signal);
    return true;
  }
}

function parts(found, jobs, changes, { signal, readOnly }) {
  const { newest, chosen, classes, report, history, changes: since, has_samples: hasSamples } = found;
  const latest = newest.dataset;
  const isOld = latest !== chosen.dataset && h("p.warn", `This is an older version; the newest is `, h("a", { href: datasetAddress(latest) }, latest), ".");
  const grid = hasSamples ? new SampleGrid(chosen.dataset, classes, signal, changes).element : null;
  const issues = hasSamples && new IssuePanel(chosen.dataset, changes, { signal, mayStart: !readOnly }).element;
  const away = h("p.note", "The pictures are on the workers; this service does not reach them.");
  const warnings = found.warnings.map((text) => h("li", sentence(text)));
  return [
    isOld,
    actions(chosen.dataset, isOld ? chosen.dataset : found.name, readOnly),
    panel(
      "What it is",
      facts([
        ["Version", chosen.dataset],
        ["Samples", `${number(chosen.samples, 0)} in ${chosen.classes} classes`],
        ["Pictures", shapeOf(chosen.shape)],
        ["Source", `${chosen.source} (${chosen.kind})`],
        ["SHA-256", h("code", chosen.sha256)],
        found.aliases.length > 0 && ["Aliases", found.aliases.join(", ")],
      ]),
    ),
    warnings.length > 0 && panel("Look at this", h("ul.warn", warnings)),
    panel("Classes", classBars(classes)),
    panel("Samples", grid ?? away),
    issues,
    changes?.error,
    changes?.element,
    refusedPanel(report.refused),
    ...pairPanels(chosen.dataset, report, signal, { pictures: hasSamples, changes }),
    panel("Versions", since && changeWords(since), versionList(history)),
    panel("Jobs that used it", jobs),
  ];
}

function actions(dataset, name, readOnly) {
  if (readOnly) return null;
  const error = h("p.bad", { role: "alert" });
  async function remove() {
    setText(error, "");
    try {
      if (await removeDataset(dataset)) location.hash = "#/data";
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      setText(error, problem.message);
    }
  }
  const train = h("a.button.primary", { href: trainAddress(name) }, "Train on it");
  const button = h("button", { type: "button", click: remove }, `Remove ${dataset}`);
  return h("div.actions", h("div.buttons", train, button), error);
}

/** Return a bar for each class, of the largest one's length at most, and the key of its parts. */
function classBars(classes) {
  const total = (one) => SIDES.reduce((sum, side) => sum + one[side], 0);
  const most = Math.max(1, ...classes.map(total));
  const key = SIDES.map((side) => h("span", h("span.key", bar([[side, 1]], 1)), side));
  const rows = classes.map((one) => classRow(one, total(one), most));
  const list = h("ul.classes", rows.slice(0, FIRST_CLASSES));
  const rest = rows.slice(FIRST_CLASSES);
  const more = h("button", { type: "button" }, `Show ${number(rest.length, 0)} more classes`);
  more.addEventListener("click", () => {
    list.append(...rest);
    more.remove();
  });
  return h("div", h("p.note.keys", key), list, rest.length > 0 && more);
}

function classRow(one, count, most) {
  const shares = SIDES.map((side) => [side, one[side] / most]);
  const words = SIDES.map((side) => `${number(one[side], 0)} ${side}`).join(", ");
  return h("li", h("span.name", one.name), bar(shares, count / most), h("span.n", { title: words }, number(count, 0)));
}

function bar(shares, length) {
  let left = 0;
  const parts = shares.map(([side, share]) => {
    const rect = svg(`rect.${side}`, { x: `${100 * left}%`, y: 0, width: `${100 * share}%`, height: "100%" });
    left += share;
    return rect;
  });
  return svg("svg.bar", { role: "img", "aria-label": percent(length, 0), height: 12 }, parts);
}

function refusedPanel({ samples, reasons }) {
  if (!samples) return null;
  const rows = reasons.map(({ reason, count, files }) => {
    const more = count > files.length ? ` and ${number(count - files.length, 0)} more` : "";
    return h("li", `${reason.slice(0, 1).toUpperCase()}${reason.slice(1)}: `, h("code", files.join(", ")), more);
  });
  return panel("Refused files", h("ul", rows));
}

function versionList(history) {
  const rows = history.map((one) => {
    const origin = one.by === null ? `from ${one.source}` : `labels changed by ${one.by}`;
    const size = `${number(one.samples, 0)} samples, ${one.classes} classes, ${origin}, `;
    return h("li", h("a", { href: datasetAddress(one.dataset) }, one.dataset), " ", h("small", size, when(one.created_at)));
  });
  return h("ul", rows);
}

function changeWords({ before, added, removed, relabelled, moved }) {
  const counts = { added, removed, "given another class": relabelled, "moved to another side of the split": moved };
  const said = Object.entries(counts).filter(([, count]) => count).map(([what, count]) => `${number(count, 0)} ${what}`);
  return h("p.note", `Since ${before}: ${said.join(", ") || "the same pictures and classes"}.`);
}

async function showJobsOf(place, name, signal) {
  fill(place, h("p.note", "Loading jobs…"));
  try {
    const { jobs } = await request(`v1/search?${new URLSearchParams({ q: `dataset:${name}`, limit: 50 })}`, { signal });
    const own = jobs.filter(({ dataset }) => dataset === name || dataset?.startsWith(`${name}@`));
    const rows = own.slice(0, MOST_JOBS).map((job) =>
      h(
        "li",
        h("a", { href: jobAddress(job.job_id) }, job.job_id),
        " ",
        statusBadge(job.status),
        h("small", ` ${job.dataset}${job.test_accuracy ? `, ${percent(job.test_accuracy)}` : ""}`),
      ),
    );
    fill(place, rows.length ? h("ul", rows) : h("p.note", "No job has used it."));
  } catch (problem) {
    if (!signal.aborted) fill(place, h("p.note", problem.message));
  }
}
