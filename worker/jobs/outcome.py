"""Outcome of a job: its result or its failure, also where an earlier attempt left it in Redis."""

from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from redis import Redis

from preflight.errors import PreflightError, error_from_reason
from preflight.redis import keys
from preflight.redis.untrusted.reads import read_value
from preflight.wire import JobFailed, TrainResult, read_result
from worker.jobs.stages.pending_extras import Extras

MAX_RESULT_BYTES: Final = 256 * 1024
"""Largest stored result, in bytes; it has a hundred fields of 2,000 characters at most."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The job was trained."""

    result: TrainResult
    extras: Extras | None = None
    """Extras that this process has to do; None: none, or `worker.queue.maintenance.extras` does them."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The job was cancelled."""

    result: TrainResult
    message: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The job failed; `job_failed` is emitted."""

    error: PreflightError


Outcome = Finished | Stopped | Failed


class StoredResultUnreadable(PreflightError):
    """The stored result of a job cannot be read."""


def stored_result(connection: Redis, job_id: str) -> TrainResult | None:
    """Return the result of a finished job; raises `StoredResultUnreadable`, `redis.exceptions.RedisError`."""
    stored = read_value(connection, keys.result(job_id), MAX_RESULT_BYTES)
    if stored is None:
        return None
    try:
        return read_result(stored)
    except ValidationError as error:
        raise StoredResultUnreadable(
            f"the result that is stored under {job_id} cannot be read ({error.error_count()} fields are wrong)"
        ) from error


def published_failure(stored: str | None) -> Failed | None:
    """Return the failure in a stored `job_failed` event; None where there is none."""
    try:
        event = JobFailed.model_validate_json(stored, extra="ignore") if stored is not None else None
    except ValidationError:
        return None
    return None if event is None else Failed(error_from_reason(event.reason, event.message, event.field))
