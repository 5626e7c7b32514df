// Asking the service: with the token where it wants one, and in one sentence where it refuses.

import { ask, h } from "./dom.js";

const TOKEN = "preflight token"; // of this tab alone; an address or a cookie would be kept elsewhere
/** Milliseconds without a sign of life after which a stream counts as broken; the service gives one every 10 s. */
const SILENCE = 25_000;

/** Why something could not be had. */
export class Problem extends Error {
  constructor(status, reason, message) {
    super(message);
    this.status = status; // 0: nobody answered
    this.reason = reason;
  }

  /** Whether it is worth asking again later. */
  get passes() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** Return what the service answers, as JSON, to GET or, with a body, to POST; raises Problem. */
export async function request(path, { body, signal } = {}) {
  const posted = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await reach(path, { ...(body === undefined ? {} : posted), signal });
  try {
    return await response.json();
  } catch (error) {
    throw interrupted(error, signal);
  }
}

/**
 * Follow server-sent events until `end`; raises Problem when the stream breaks off before.
 *
 * fetch() and not EventSource, which cannot send a token in a header.
 *
 * @param {{lastId: string}} place - where to go on; moved with every event.
 * @param {function(object)} heard - takes the events that have come together, oldest first.
 * @param {function(string)} remark - takes a comment, by which the service shows that it is there.
 */
export async function follow(path, place, { signal, heard, remark }) {
  const stopped = new AbortController();
  const stop = () => stopped.abort();
  signal.addEventListener("abort", stop);
  let alarm = setTimeout(stop, SILENCE);
  try {
    const headers = place.lastId ? { "last-event-id": place.lastId } : {};
    const response = await reach(path, { headers, signal: stopped.signal });
    let rest = "";
    for await (const text of chunks(response.body.pipeThrough(new TextDecoderStream()))) {
      clearTimeout(alarm);
      alarm = setTimeout(stop, SILENCE);
      const records = (rest + text).split("\n\n");
      rest = records.pop();
      const read = records.map(parse);
      read.filter((record) => record.comment).forEach((record) => remark(record.comment));
      const refused = read.find((record) => record.event === "problem");
      const events = read.filter((record) => record.data && record.event !== "end" && record !== refused);
      if (events.length) {
        heard(events.map((record) => JSON.parse(record.data)));
        place.lastId = events.at(-1).id ?? place.lastId;
      }
      if (refused) throw problemFrom(409, JSON.parse(refused.data));
      if (read.some((record) => record.event === "end")) return;
    }
    throw new Problem(0, "broken_off", "The service broke off.");
  } catch (error) {
    throw interrupted(error, signal);
  } finally {
    clearTimeout(alarm);
    signal.removeEventListener("abort", stop);
    stop();
  }
}

async function* chunks(stream) {
  const reader = stream.getReader();
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) yield piece.value;
}

function parse(record) {
  const found = {};
  for (const line of record.split("\n")) {
    const [, name, value] = line.match(/^(\w*): ?(.*)$/) ?? [];
    if (name !== undefined) found[name || "comment"] = value;
  }
  return found;
}

/** Return a response that is no refusal; asks for a token where one is missing. */
async function reach(path, { method = "GET", headers = {}, body, signal }) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const sent = token ? { ...headers, authorization: `Bearer ${token}` } : headers;
    let response;
    try {
      response = await fetch(path, { method, headers: sent, body, signal, cache: "no-store" });
    } catch (error) {
      throw interrupted(error, signal);
    }
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status !== 401) throw problem;
    // Another request may have been given a new one meanwhile.
    if (token === sessionStorage.getItem(TOKEN) && !(await asked(problem, token))) throw problem;
    signal?.throwIfAborted();
  }
}

async function problemOf(response) {
  try {
    return problemFrom(response.status, await response.json());
  } catch {
    return new Problem(
      response.status,
      "failed",
      `The service failed with status ${response.status}; its log says why.`,
    );
  }
}

function problemFrom(status, { reason, message }) {
  return new Problem(status, reason, sentence(message));
}

/** Return what an interrupted request is to raise: nothing new where it was us who ended it. */
function interrupted(error, signal) {
  if (error instanceof Problem || signal?.aborted) return error;
  return new Problem(0, "unreachable", "The service does not answer.");
}

/** Return a clause of the service as a sentence. */
export function sentence(clause) {
  const text = String(clause);
  return text && text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}

let asking = null; // one dialog, however many requests are refused

function asked(problem, refused) {
  asking ??= askForToken(problem, refused).finally(() => (asking = null));
  return asking;
}

async function askForToken(problem, refused) {
  const input = h("input", { type: "password", id: "token", required: true, pattern: "[!-~]+", autocomplete: "off" });
  const parts = [
    h(
      "p",
      {},
      refused ? "This token was not accepted. " : "This service lets in whoever has its token. ",
      "It is the value of ",
      h("code", {}, "PREFLIGHT_API_TOKEN"),
      "; this tab forgets it when it is closed.",
    ),
    h("label", { for: "token" }, "Token"),
    input,
  ];
  const given = await ask("A token is needed", parts, { yes: "Enter", no: "Not now" });
  if (!given) return false;
  sessionStorage.setItem(TOKEN, input.value.trim());
  return true;
}

/** Whether this tab has a token. */
export function hasToken() {
  return sessionStorage.getItem(TOKEN) !== null;
}
