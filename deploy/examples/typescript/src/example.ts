/** Enqueues a job, prints what happens to it, and exits as `preflight watch` does: 0 finished, 1 failed, 3 cancelled. */

import { type Event, Preflight, Refused } from "./client.js";

const url = process.env["PREFLIGHT_URL"] ?? "http://localhost:8000";
const preflight = new Preflight(url, process.env["PREFLIGHT_API_TOKEN"]);

try {
  const { job_id } = await preflight.enqueue({
    type: "preflight.train.v1",
    dataset: "digits",
    model: "cnn",
    batch_size: 32,
    calibrate: false,
    plan: { threads: 1 },
  });
  console.log(`queued: ${job_id}`);
  for await (const { id, event } of preflight.events(job_id)) console.log(`${id} ${event.type}: ${told(event)}`);
  const { status, message, result } = await preflight.get(job_id);
  console.log(`${status}: ${message ?? `test accuracy ${percent(result?.test_accuracy)}, ${result?.artifact}`}`);
  process.exitCode = status === "finished" ? 0 : status === "cancelled" ? 3 : 1;
} catch (error) {
  if (!(error instanceof Refused || error instanceof TypeError)) throw error;
  console.error(`${url}: ${error.message}`);
  process.exitCode = 1;
}

/** Return what is worth telling of an event; its type decides which fields it has. */
function told(event: Event): string {
  switch (event.type) {
    case "job_started":
      return `attempt ${event.attempt} on ${event.worker}`;
    case "progress":
      return `epoch ${event.epoch}/${event.epochs}, step ${event.step}/${event.steps}, loss ${event.loss.toFixed(3)}`;
    case "epoch_done":
      return `${event.samples_per_s.toFixed(0)} samples/s`;
    case "training_done":
      return `test accuracy ${percent(event.test_accuracy)}`;
    case "job_failed":
      return `${event.reason}: ${event.message}`;
    default:
      return `seq ${event.seq}`;
  }
}

function percent(share: number | null | undefined): string {
  return share == null ? "not measured" : `${(100 * share).toFixed(2)} %`;
}
