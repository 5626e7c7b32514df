"""Saying no to what came out of the queue, to whoever watches it."""

import time

from redis import Redis
from redis.exceptions import ResponseError
from rq import Queue

from training.errors import PreflightError
from worker.broker import keys
from worker.broker.retry import spoiled
from worker.config.settings import Settings
from worker.events.redis_sink import LogSink
from worker.events.state import publish
from worker.queue import quarantine
from worker.queue.admission.admit import end_accepted
from worker.queue.untrusted_job import Poison
from worker.wire import LONGEST_TEXT, JobFailed, is_job_id


class Quarantined(PreflightError):
    """What stood in the queue cannot be a job, or kills every worker that takes it."""

    reason = "quarantined"


def say_failed(connection: Redis, settings: Settings, job_id: str | None, error: PreflightError) -> None:
    """Tell log and watchers of a failure of a job that no attempt runs; without `job_id` the log alone.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    event = JobFailed(
        seq=0, job_id=job_id or "unnamed", attempt=0, ts=time.time(), reason=error.reason,
        field=error.field and error.field[:LONGEST_TEXT],
        message=settings.scrubbed(error.message)[:LONGEST_TEXT],
    )  # fmt: skip
    if not error.told:
        LogSink(event.job_id, 0).emit(event)
        error.told = True  # the log shall say it once, however often Redis has to be asked
    if job_id is not None:
        publish(connection, event, ttl=settings.state_ttl)


def told_under(connection: Redis, own_id: str, rq_id: str) -> str | None:
    """Return the id under which a refusal is told: the request's own where nothing is known of it, else RQ's.

    Whoever may enqueue could otherwise have the failure of a job of somebody else told. None: that one is running.
    """
    known = (keys.fence(own_id), keys.state(own_id), keys.result(own_id))
    told = own_id if own_id == rq_id or not connection.exists(*known) else rq_id
    return None if connection.exists(keys.lease(told)) else told


def say_mismatch(connection: Redis, settings: Settings, job_id: str, rq_id: str, error: PreflightError) -> None:
    """Publish the failure of a request whose `job_id` belongs to another, under RQ's id.

    Where that is the same id, what is published there is the other's: the failure is in RQ's records and the log alone.
    """
    say_failed(connection, settings, None if rq_id == job_id else told_under(connection, rq_id, rq_id), error)


def put_away(
    connection: Redis, queue: Queue, settings: Settings, poison: Poison, claimed_id: str | None = None
) -> None:
    """Take what cannot be a job out of the queue, and say so.

    Args:
        connection: to Redis.
        queue: where it stood.
        settings: of the service.
        poison: what is wrong, and with which id of the queue.
        claimed_id: the job's id, where it was a job and killed its workers.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    shown = quarantine.put(connection, queue, poison.job_id, poison.message, ttl=settings.state_ttl)
    job_id = claimed_id
    if claimed_id is None and is_job_id(poison.job_id):
        job_id = told_under(connection, poison.job_id, poison.job_id)
    message = f"{poison.message}; it is in quarantine as {quarantine.printable(shown)}"
    try:
        say_failed(connection, settings, job_id, Quarantined(message))
        if claimed_id is not None:
            # Should somebody enqueue it again:
            connection.hset(keys.fence(claimed_id), "deaths", 0)
            connection.hdel(keys.fence(claimed_id), "request", "rounds", "spared", "failure")
            connection.expire(keys.fence(claimed_id), settings.state_ttl)
            connection.delete(keys.cancel(claimed_id))
            end_accepted(connection, claimed_id, poison.job_id, settings)
    except ResponseError as error:
        if not spoiled(error):  # else it is these very keys that are not what they should be
            raise
