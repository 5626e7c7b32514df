"""Cancel a job: remove it from the queue, or ask its attempt to stop."""

import time

from pydantic import TypeAdapter
from redis import Redis
from redis.exceptions import NoPermissionError
from rq import Queue
from rq.exceptions import NoSuchJobError

from preflight.client.job_state import JobRecord
from preflight.errors import InvalidConfig
from preflight.events.state import publish, request_cancel
from preflight.queue.ids import resolve_event_id, resolve_job_id
from preflight.queue.payload import PoisonMessage
from preflight.queue.untrusted_job import fetch_job
from preflight.redis import keys
from preflight.redis.lua import run_script
from preflight.wire import STATE_TTL, JobCancelled

REMOVED = TypeAdapter(bool)


def cancel_job(queue: Queue, record: JobRecord) -> None:
    """Cancel a job that is queued or running."""
    redis, job_id, rq_id = queue.connection, record.job_id, record.rq_id
    try:
        request_cancel(redis, job_id, ttl=STATE_TTL)
        if _remove_from_queue(queue, job_id, rq_id):
            event_id = job_id if record.own else _event_id(redis, rq_id)
            if event_id is not None:
                event = JobCancelled(
                    seq=0, job_id=event_id, attempt=0, ts=time.time(), message="cancelled in the queue"
                )
                publish(redis, event, ttl=STATE_TTL, rq_id=rq_id)
            redis.delete(keys.cancel(job_id))
    except NoPermissionError:
        # A producer may only set the key; the worker that takes the job deletes it.
        redis.hset(keys.cancel(job_id), "at", str(time.time()))


def _event_id(redis: Redis, rq_id: str) -> str | None:
    """Return the id of a job that no worker has taken, as the worker that refuses it would choose it."""
    try:
        own_id = resolve_job_id(fetch_job(rq_id, redis).args, rq_id)
    except (NoSuchJobError, PoisonMessage, InvalidConfig):
        return rq_id
    return resolve_event_id(redis, own_id, rq_id)


def _remove_from_queue(queue: Queue, job_id: str, rq_id: str) -> bool:
    return run_script(
        queue.connection, "rq/cancel_queued", REMOVED,
        keys=[
            queue.key, keys.rq_job(rq_id), queue.canceled_job_registry.key, keys.lease(job_id),
            queue.scheduled_job_registry.key, queue.deferred_job_registry.key,
        ],
        args=[rq_id, STATE_TTL, int(time.time())],
    )  # fmt: skip
