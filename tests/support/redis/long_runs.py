"""Finished jobs with as many events as Redis keeps."""

import json
import time

from redis import Redis

from preflight import Client
from preflight.redis import keys
from preflight.wire import EVENTS_KEPT, TrainJob
from support.worker.services import digits_job

EPOCHS = 40
STEPS = EVENTS_KEPT // EPOCHS - 1
ADD_EPOCHS = """
for epoch = 1, tonumber(ARGV[1]) do
  for step = 1, tonumber(ARGV[2]) do
    local done = epoch - 1 + step / ARGV[2]
    local at = ((epoch - 1) * (ARGV[2] + 1) + step) * 500
    redis.call('XADD', KEYS[1], at .. '-0', 'type', 'progress', 'epoch', epoch, 'step', step, 'steps', ARGV[2],
      'loss', 2 / (1 + done * ARGV[3]), 'accuracy', 1 - 0.9 / (1 + done), 'samples_per_s', 10000 + step,
      'v', 1, 'job_id', 'x', 'attempt', 1, 'seq', step, 'ts', at / 1000, 'epochs', ARGV[1], 'eta_s', 1)
  end
  redis.call('XADD', KEYS[1], epoch * (ARGV[2] + 1) * 500 .. '-0', 'type', 'epoch_done', 'epoch', epoch, 'loss', 0.1,
    'val_acc', 1 - 0.5 / epoch, 'val_loss', 1 / epoch, 'samples_per_s', 1, 'seconds', 1, 'train_seconds', 1)
end
"""
"""Script that adds the events of a long training: epochs, progress events in each, and how fast the loss falls."""


def add_run(redis: Redis, client: Client, job_id: str, rate: int, **fields: object) -> None:
    """Make a finished job of 10,000 events."""
    job = digits_job(job_id=job_id, epochs=EPOCHS).model_dump(mode="json", exclude_unset=True)
    client.enqueue(TrainJob.model_validate_json(json.dumps({**job, **fields})))
    redis.lrem("rq:queue:preflight", 0, job_id)
    redis.hset(keys.rq_job(job_id), "status", "finished")
    redis.zadd("rq:finished:preflight", {job_id: time.time() + 86_400})
    redis.hset(keys.state(job_id), mapping={
        "status": "finished", "dataset": "digits", "model": "cnn", "attempt": 1, "started_at": time.time() - 100 * rate,
        "updated_at": time.time(), "test_accuracy": 0.9 + rate / 100, "epochs": EPOCHS, "samples_per_s": 1000 * rate,
    })  # fmt: skip
    redis.eval(ADD_EPOCHS, 1, keys.events(job_id), EPOCHS, STEPS, rate)
