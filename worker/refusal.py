"""Saying no to what came out of the queue, to whoever watches it."""

import time

from redis import Redis
from redis.exceptions import ResponseError
from rq import Queue

from training.errors import PreflightError
from worker import keys, quarantine
from worker.patience import spoiled
from worker.publish import publish
from worker.safe_job import Poison
from worker.settings import Settings
from worker.sinks import LogSink
from worker.wire import LONGEST_TEXT, JobFailed, is_job_id


class Quarantined(PreflightError):
    """What stood in the queue cannot be a job, or kills every worker that takes it."""

    reason = "quarantined"


def say_failed(connection: Redis, settings: Settings, job_id: str, error: PreflightError) -> None:
    """Tell log and watchers of a failure of a job that no attempt runs.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    event = JobFailed(
        seq=0, job_id=job_id, attempt=0, ts=time.time(), reason=error.reason, field=error.field,
        message=error.message[:LONGEST_TEXT],
    )  # fmt: skip
    if not error.told:
        LogSink(job_id, 0).emit(event)
        error.told = True  # the log shall say it once, however often Redis has to be asked
    publish(connection, event, ttl=settings.state_ttl)


def put_away(connection: Redis, queue: Queue, settings: Settings, poison: Poison, job_id: str | None = None) -> None:
    """Take what cannot be a job out of the queue, and say so under `job_id`, else under the id in the queue.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    shown = quarantine.put(connection, queue, poison.job_id, poison.message, ttl=settings.state_ttl)
    known = job_id or poison.job_id
    if is_job_id(known):
        why = Quarantined(f"{poison.message}; `preflight quarantine list` shows it")
        try:
            say_failed(connection, settings, known, why)
            connection.hset(keys.fence(known), "deaths", 0)  # should somebody enqueue it again
            connection.expire(keys.fence(known), settings.state_ttl)
        except ResponseError as error:
            if not spoiled(error):  # else it is these very keys that are not what they should be
                raise
    else:
        LogSink("unnamed", 0).emit(
            JobFailed(seq=0, job_id="unnamed", attempt=0, ts=time.time(), reason=Quarantined.reason,
                      message=f"{poison.message}; it is in quarantine as {shown}"[:LONGEST_TEXT])
        )  # fmt: skip
