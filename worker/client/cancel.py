"""Cancel a job: remove it from the queue, or ask its attempt to stop."""

import time

from pydantic import TypeAdapter
from redis.exceptions import NoPermissionError
from rq import Queue

from worker.broker import keys
from worker.broker.lua import run_script
from worker.events.state import publish, request_cancel
from worker.wire import STATE_TTL, JobCancelled

REMOVED = TypeAdapter(bool)


def cancel_job(queue: Queue, job_id: str) -> None:
    """Cancel a job that is queued or running."""
    redis = queue.connection
    try:
        request_cancel(redis, job_id, ttl=STATE_TTL)
        if _remove_from_queue(queue, job_id):
            event = JobCancelled(seq=0, job_id=job_id, attempt=0, ts=time.time(), message="cancelled in the queue")
            publish(redis, event, ttl=STATE_TTL)
            redis.delete(keys.cancel(job_id))
    except NoPermissionError:
        # A producer may only set the key; the worker that takes the job deletes it.
        redis.hset(keys.cancel(job_id), "at", str(time.time()))


def _remove_from_queue(queue: Queue, job_id: str) -> bool:
    return run_script(
        queue.connection, "rq/cancel_queued", REMOVED,
        keys=[
            queue.key, keys.rq_job(job_id), queue.canceled_job_registry.key, queue.scheduled_job_registry.key,
            queue.deferred_job_registry.key,
        ],
        args=[job_id, STATE_TTL, int(time.time())],
    )  # fmt: skip
