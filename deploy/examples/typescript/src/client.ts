/** A client for `preflight serve`. It needs nothing but `fetch`: Node 18, Deno, Bun, browsers. */

import type { components } from "./api.js";

type Schemas = components["schemas"];
export type Job = Schemas["TrainJob"];
export type Event = Schemas["Event"];
export type State = Schemas["JobState"];
export type Detail = Schemas["JobDetail"];
export type Status = State["status"];
export type Enqueued = Schemas["Enqueued"];
export type Cancelling = Schemas["Cancelling"];
export type Problem = Schemas["Problem"];

/** What a model sees in a picture. */
export interface Prediction {
  id: string;
  model_sha256: string;
  class: string;
  probability: number;
  /** By name of the class. */
  probabilities: Record<string, number>;
  /** Null: the model's threshold was not measured. */
  uncertain: boolean | null;
}

/** The service said no. `message` is one sentence: what, which value, which bound, what to do. */
export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.message);
    this.name = "Refused";
  }
}

/** Milliseconds of silence after which a connection counts as lost; the service says something every 10 s. */
const SILENCE = 30_000;
/** Milliseconds before a lost connection is made again; twice as many after each try in vain, up to the longest. */
const PAUSE = 250;
const LONGEST_PAUSE = 8_000;
/** Connections in a row that brought no event; a failure after as many is not passed over any more. */
const TRIES = 10;

export class Preflight {
  readonly #base: string;
  readonly #headers: Record<string, string>;

  /**
   * @param url of the service, e.g. http://localhost:8000
   * @param token its PREFLIGHT_API_TOKEN, where it has one
   */
  constructor(url: string, token?: string) {
    this.#base = url.replace(/\/+$/, "");
    this.#headers = token === undefined ? {} : { authorization: `Bearer ${token}` };
  }

  /**
   * Put a job into the queue. Its `job_id` is the idempotency key: with one, a call that failed on the way can be
   * repeated, and of several only the first has `created`.
   */
  async enqueue(job: Job): Promise<Enqueued> {
    const body = JSON.stringify(job);
    const headers = { "content-type": "application/json" };
    const answer = await this.#ask("/v1/jobs", { method: "POST", headers, body }, [409]);
    return (await answer.json()) as Enqueued;
  }

  /** Return the latest of everything about a job, and its result once it is finished. */
  async get(jobId: string): Promise<Detail> {
    return (await (await this.#ask(pathOf(jobId))).json()) as Detail;
  }

  /** Return jobs, the newest first; at most 1000. */
  async list(only: { status?: Status[]; limit?: number } = {}): Promise<State[]> {
    const query = new URLSearchParams((only.status ?? []).map((status): [string, string] => ["status", status]));
    query.set("limit", String(only.limit ?? 100));
    return (await (await this.#ask(`/v1/jobs?${query}`)).json()) as State[];
  }

  /** Ask a job to stop: at once in the queue, within a step when it runs. */
  async cancel(jobId: string): Promise<Cancelling> {
    const request = { method: "POST", headers: { "content-type": "application/json" }, body: "{}" };
    return (await (await this.#ask(`${pathOf(jobId)}/cancel`, request)).json()) as Cancelling;
  }

  /** Return what the model of an alias, such as `production`, sees in a picture: the bytes of a PNG or JPEG. */
  async predict(alias: string, picture: Blob): Promise<Prediction> {
    const headers = { "content-type": picture.type || "application/octet-stream" };
    const path = `/v1/models/${encodeURIComponent(alias)}/predict`;
    return (await (await this.#ask(path, { method: "POST", headers, body: picture })).json()) as Prediction;
  }

  /**
   * Yield a job's events until it has ended, each once, through lost connections and restarts of the service.
   *
   * @param after id to go on behind, e.g. that of the last event of an earlier call; by default the oldest is first
   * @param signal ends the wait with its reason
   */
  async *events(jobId: string, after = "0", signal?: AbortSignal): AsyncGenerator<{ id: string; event: Event }, void> {
    for (let tries = 1; ; tries++) {
      try {
        for await (const message of this.#messages(jobId, after, signal)) {
          if (message.event === "end") return;
          if (!isBehind(message.id, after)) continue;
          after = message.id;
          tries = 0;
          yield { id: message.id, event: JSON.parse(message.data) as Event };
        }
      } catch (error) {
        if (tries >= TRIES || signal?.aborted || !passes(error)) throw error;
      }
      await pause(Math.min(PAUSE * 2 ** tries, LONGEST_PAUSE), signal);
    }
  }

  /** Yield what one connection brings; it is closed when nobody asks for more, and when it is silent for too long. */
  async *#messages(jobId: string, after: string, signal?: AbortSignal): AsyncGenerator<Message, void> {
    const connection = new AbortController();
    const leave = () => connection.abort(signal?.reason);
    const giveUp = () => connection.abort(new TypeError(`nothing came for ${SILENCE / 1000} s`));
    let silence = setTimeout(giveUp, SILENCE);
    signal?.addEventListener("abort", leave);
    try {
      signal?.throwIfAborted();
      const headers = { accept: "text/event-stream", "last-event-id": after };
      const answer = await this.#ask(`${pathOf(jobId)}/events`, { headers, signal: connection.signal });
      if (answer.body === null) return;
      for await (const message of parsed(answer.body)) {
        clearTimeout(silence);
        silence = setTimeout(giveUp, SILENCE);
        if (message.event !== "") yield message;
      }
    } finally {
      clearTimeout(silence);
      signal?.removeEventListener("abort", leave);
      connection.abort();
    }
  }

  async #ask(path: string, request: RequestInit = {}, also: number[] = []): Promise<Response> {
    const headers = { ...this.#headers, ...(request.headers as Record<string, string> | undefined) };
    const answer = await fetch(this.#base + path, { ...request, headers });
    if (answer.ok || also.includes(answer.status)) return answer;
    throw new Refused(answer.status, await problemIn(answer));
  }
}

interface Message {
  id: string;
  event: string;
  data: string;
}

/** Yield the server-sent events in a body (WHATWG HTML, 9.2.6), and an empty one for each comment: a sign of life. */
async function* parsed(body: ReadableStream<Uint8Array>): AsyncGenerator<Message, void> {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let [rest, id, event, data] = ["", "", "", [] as string[]];
  for (let chunk = await reader.read(); !chunk.done; chunk = await reader.read()) {
    const lines = (rest + chunk.value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? "";
    for (const line of lines) {
      const [name = "", ...others] = line.split(":");
      const value = others.join(":").replace(/^ /, "");
      if (line === "" && data.length > 0) yield { id, event, data: data.join("\n") };
      else if (line.startsWith(":")) yield { id: "", event: "", data: "" };
      else if (name === "id") id = value;
      else if (name === "event") event = value;
      else if (name === "data") data.push(value);
      if (line === "") [event, data] = ["", []];
    }
  }
}

/** Whether a stream record's id, `<milliseconds>-<number>`, comes after another. */
function isBehind(id: string, other: string): boolean {
  const [time = 0, number = 0] = id.split("-").map(Number);
  const [otherTime = 0, otherNumber = 0] = other.split("-").map(Number);
  return time > otherTime || (time === otherTime && number > otherNumber);
}

/** Whether it is worth trying again: the connection was lost (a `TypeError` of `fetch`), or the service is not ready. */
function passes(error: unknown): boolean {
  return error instanceof Refused ? error.status === 429 || error.status >= 500 : error instanceof TypeError;
}

async function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  let wake = () => {};
  const timer = setTimeout(() => wake(), milliseconds);
  try {
    await new Promise<void>((resolve) => {
      wake = resolve;
      signal?.addEventListener("abort", wake);
    });
    signal?.throwIfAborted();
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", wake);
  }
}

async function problemIn(answer: Response): Promise<Problem> {
  try {
    return (await answer.json()) as Problem;
  } catch {
    return { reason: "no_answer", message: `status ${answer.status} from something that is not preflight` };
  }
}

function pathOf(jobId: string): string {
  return `/v1/jobs/${encodeURIComponent(jobId)}`;
}
