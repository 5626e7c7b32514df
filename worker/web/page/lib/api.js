// HTTP requests and server-sent events, with the token where the service needs one.

import { sentence } from "./format.js";
import { parseJson, toJson } from "./json.js";
import { requestToken, token } from "./token.js";

/** Milliseconds without data after which a stream counts as broken; the service sends a comment every 10 s. */
const STREAM_TIMEOUT = 25_000;
/**
 * Not `authorization`, in which the browser sends the password of a proxy that asks for one (Basic). It is sent without a
 * token, too: the service then refuses with 403, since the browser would forget that password after 401.
 */
const TOKEN_HEADER = "x-preflight-token";

/** Why a request failed; status 0 means that the service did not answer. */
export class Problem extends Error {
  constructor(status, reason, message, field = null) {
    super(message);
    this.status = status;
    this.reason = reason;
    this.field = field;
  }

  /** Whether a retry may succeed. */
  get isTransient() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/**
 * Return the JSON response to GET, to POST with a body, or to `method`, undefined where it is empty; raises Problem.
 *
 * A Blob is sent as it is.
 */
export async function request(path, { body, method, signal } = {}) {
  const [type, content] = body instanceof Blob ? [body.type, body] : ["application/json", toJson(body)];
  const post = { method: "POST", headers: { "content-type": type }, body: content };
  const response = await authorizedFetch(path, { ...(body === undefined ? { method } : post), signal });
  try {
    const text = await response.text();
    return text === "" ? undefined : parseJson(text);
  } catch (error) {
    throw asProblem(error, signal);
  }
}

/**
 * Send a file; returns the JSON response, raises Problem.
 *
 * XMLHttpRequest and not fetch(), which does not say how far it is.
 *
 * @param {function(number)} onProgress - takes the share that is sent.
 */
export async function send(path, file, { signal, onProgress }) {
  for (;;) {
    const sent = token();
    const { status, text } = await post(path, file, sent, signal, onProgress);
    if (status >= 200 && status < 300) return parseJson(text);
    const problem = problemOfText(status, text);
    if (problem.reason !== "unauthorized") throw problem;
    if (sent === token() && !(await requestToken(sent))) throw problem;
  }
}

function post(path, file, sent, signal, onProgress) {
  return new Promise((resolve, reject) => {
    const asked = new XMLHttpRequest();
    const fail = (reason, message) => () => reject(new Problem(0, reason, message));
    asked.open("POST", addressOf(path));
    asked.setRequestHeader("content-type", "application/octet-stream");
    asked.setRequestHeader(TOKEN_HEADER, sent ?? "");
    asked.upload.addEventListener("progress", ({ loaded, total }) => total && onProgress(loaded / total));
    asked.addEventListener("load", () => resolve({ status: asked.status, text: asked.responseText }));
    asked.addEventListener("error", fail("unreachable", "The service broke off the upload."));
    asked.addEventListener("abort", fail("stopped", "The upload was stopped."));
    signal.addEventListener("abort", () => asked.abort());
    asked.send(file);
  });
}

/** Return a response's content and headers; raises Problem. */
export async function fetchBlob(path, { signal } = {}) {
  const response = await authorizedFetch(path, { signal });
  try {
    return { blob: await response.blob(), headers: response.headers };
  } catch (error) {
    throw asProblem(error, signal);
  }
}

/** Return the text of a file; raises Problem. */
export async function download(path, { signal } = {}) {
  const response = await authorizedFetch(path, { signal });
  try {
    return await response.text();
  } catch (error) {
    throw asProblem(error, signal);
  }
}

/**
 * Follow server-sent events until `end`; raises Problem when the stream breaks off before.
 *
 * fetch() and not EventSource, which cannot send a token in a header.
 *
 * @param {{lastId: string}} cursor - id of the last event; updated with every event.
 * @param {function(object[])} onEvents - takes the events of one chunk, oldest first.
 * @param {function(string)} onComment - takes a comment, which the service sends as keep-alive.
 */
export async function follow(path, cursor, { signal, onEvents, onComment }) {
  const stopped = new AbortController();
  const stop = () => stopped.abort();
  signal.addEventListener("abort", stop);
  let timeout = setTimeout(stop, STREAM_TIMEOUT);
  try {
    const headers = cursor.lastId ? { "last-event-id": cursor.lastId } : {};
    const response = await authorizedFetch(path, { headers, signal: stopped.signal });
    let rest = "";
    for await (const text of chunks(response.body.pipeThrough(new TextDecoderStream()))) {
      clearTimeout(timeout);
      timeout = setTimeout(stop, STREAM_TIMEOUT);
      const blocks = (rest + text).split("\n\n");
      rest = blocks.pop();
      const records = blocks.map(parse);
      records.filter((record) => record.comment).forEach((record) => onComment(record.comment));
      const problem = records.find((record) => record.event === "problem");
      const events = records.filter((record) => record.data && record.event !== "end" && record !== problem);
      if (events.length) {
        onEvents(events.map(asEvent));
        cursor.lastId = events.at(-1).id ?? cursor.lastId;
      }
      if (problem) throw problemFrom(409, JSON.parse(problem.data));
      if (records.some((record) => record.event === "end")) return;
    }
    throw new Problem(0, "stream_broken", "The event stream broke off.");
  } catch (error) {
    throw asProblem(error, signal);
  } finally {
    clearTimeout(timeout);
    signal.removeEventListener("abort", stop);
    stop();
  }
}

/**
 * The event of a record, with what the service says of it: its sentence, its phrases, the words of its plan, the status
 * and the stage of the job after it; and its line of JSON. Not enumerable, as they are no fields of the event.
 */
function asEvent({ data, text = "", plan, phrases = "{}", status, stage }) {
  return Object.defineProperties(JSON.parse(data), {
    text: { value: text },
    phrases: { value: JSON.parse(phrases) },
    plan_words: { value: plan && JSON.parse(plan) },
    status_after: { value: status },
    stage: { value: stage },
    line: { value: data },
  });
}

async function* chunks(stream) {
  const reader = stream.getReader();
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) yield chunk.value;
}

function parse(block) {
  const record = {};
  for (const line of block.split("\n")) {
    const [, name, value] = line.match(/^(\w*): ?(.*)$/) ?? [];
    if (name !== undefined) record[name || "comment"] = value;
  }
  return record;
}

/**
 * Return the whole address of a path: relative to the page, which a proxy may have put below a path.
 *
 * Without the password of an address such as me:secret@host, which fetch() refuses.
 */
export function addressOf(path) {
  return Object.assign(new URL(path, document.baseURI), { username: "", password: "" }).href;
}

/** Return a successful response; asks for a token where one is missing. */
async function authorizedFetch(path, { method = "GET", headers = {}, body, signal }) {
  for (;;) {
    const sent = token();
    let response;
    try {
      response = await fetch(addressOf(path), {
        method,
        headers: { ...headers, [TOKEN_HEADER]: sent ?? "" },
        body,
        signal,
        cache: "no-store",
      });
    } catch (error) {
      throw asProblem(error, signal);
    }
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (problem.reason !== "unauthorized") throw problem;
    // Another request may have received a new token meanwhile.
    if (sent === token() && !(await requestToken(sent))) throw problem;
    signal?.throwIfAborted();
  }
}

async function problemOf(response) {
  return problemOfText(response.status, await response.text().catch(() => ""));
}

function problemOfText(status, text) {
  try {
    return problemFrom(status, JSON.parse(text));
  } catch {
    return new Problem(status, "failed", `The service failed with status ${status}; its log says why.`);
  }
}

function problemFrom(status, { reason, message, field }) {
  return new Problem(status, reason, sentence(message, field), field);
}

/** Return the Problem of an interrupted request; the error itself where the caller aborted. */
function asProblem(error, signal) {
  if (error instanceof Problem || signal?.aborted) return error;
  return new Problem(0, "unreachable", "The service does not answer.");
}
