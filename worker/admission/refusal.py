"""Refusals: publish the failure of a job that no attempt runs, or quarantine it; options of RQ that are refused."""

import time
from collections.abc import Mapping
from typing import Final

from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq import Queue

from preflight.cli.formatting.text import printable
from preflight.errors import PreflightError
from preflight.events.state import publish
from preflight.queue.ids import resolve_event_id
from preflight.queue.payload import PoisonMessage
from preflight.queue.untrusted_job import UntrustedJob
from preflight.redis import keys
from preflight.redis.retry import is_wrong_type
from preflight.wire import MAX_TEXT_LENGTH, JobFailed, is_job_id
from worker.admission import quarantine
from worker.admission.acceptance import end_acceptance
from worker.admission.dependents import explain_foreign_queues, foreign_queues
from worker.config.settings import Settings
from worker.events.log_sink import LogSink

CALLBACK: Final = "{} is not called, because this worker imports nothing that a queue names; follow the job's events"
WEBHOOKS: Final = "webhooks are not sent, because this worker opens no URL that a queue names; follow the job's events"
REPEAT: Final = "the job is not repeated, because its signature serves once; enqueue each run signed"


class Quarantined(PreflightError):
    """The entry of the queue cannot be a job, or kills every worker that takes it."""

    reason = "quarantined"


def publish_failure(
    connection: Redis, settings: Settings, job_id: str | None, error: PreflightError, rq_id: str | None = None
) -> None:
    """Log and publish the failure of a job that no attempt runs; without `job_id`, log it only.

    `rq_id` is RQ's id of the job, where it may have another.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    event = _failure(settings, job_id, error)
    try:
        if job_id is not None:
            publish(connection, event, ttl=settings.state_ttl, rq_id=rq_id)
    except RedisError as error:
        if not is_wrong_type(error):  # it is called again, and logs then
            raise
        LogSink(event.job_id, 0).emit(event)
        raise
    LogSink(event.job_id, 0).emit(event)


def _failure(settings: Settings, job_id: str | None, error: PreflightError) -> JobFailed:
    return JobFailed(
        seq=0, job_id=job_id or "unnamed", attempt=0, ts=time.time(), reason=error.reason,
        field=error.field and error.field[:MAX_TEXT_LENGTH],
        message=settings.redact(error.message)[:MAX_TEXT_LENGTH],
    )  # fmt: skip


def publish_mismatch(connection: Redis, settings: Settings, job_id: str, rq_id: str, error: PreflightError) -> None:
    """Publish the failure of a request whose `job_id` belongs to another, under RQ's id.

    Where that is the same id, the other request's events are there: only RQ's records and the log have the failure.
    """
    publish_failure(
        connection, settings, None if rq_id == job_id else resolve_event_id(connection, rq_id, rq_id), error
    )


def quarantine_job(
    connection: Redis, queue: Queue, settings: Settings, poison: PoisonMessage, claimed_id: str | None = None
) -> None:
    """Put an entry of the queue into quarantine and publish its failure, once, however many workers find it.

    `claimed_id` is the job's id, where a worker had begun to run it.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    job_id = claimed_id
    if claimed_id is None and is_job_id(poison.job_id):
        job_id = resolve_event_id(connection, poison.job_id, poison.job_id)
    name = printable(quarantine.name_of(poison.job_id))
    failure = _failure(settings, job_id, Quarantined(f"{poison.message}; it is in quarantine as {name}"))
    moved = quarantine.put(
        connection, queue, poison.job_id, poison.message, ttl=settings.state_ttl,
        failure=None if job_id is None else failure,
    )  # fmt: skip
    if moved:
        LogSink(failure.job_id, 0).emit(failure)
    try:
        if claimed_id is not None:
            # It may be enqueued again:
            connection.hset(keys.fence(claimed_id), "deaths", 0)
            connection.hdel(keys.fence(claimed_id), "request", "rounds", "spared", "failure")
            connection.expire(keys.fence(claimed_id), settings.state_ttl)
            connection.delete(keys.cancel(claimed_id), keys.cancel(poison.job_id))
            end_acceptance(connection, claimed_id, poison.job_id, settings)
    except ResponseError as error:
        if not is_wrong_type(error):  # else the job's keys are themselves broken
            raise


def refused_options(connection: Redis, queue: Queue, job: UntrustedJob, settings: Settings) -> Mapping[str, str]:
    """Return RQ's option -> sentence for each refused option of a job; raises `redis.exceptions.RedisError`."""
    found = {name: WEBHOOKS if name == "webhooks" else CALLBACK.format(name) for name in job.options.refused}
    if job.options.repeats_left and settings.signing_key is not None:
        found["repeat"] = REPEAT
    queues = foreign_queues(connection, queue, job.id, settings)
    if queues:
        found["dependents"] = explain_foreign_queues(queues)
    return found
