"""Delete a job that has ended: a request in Redis, which a worker carries out, as it reaches the job's files."""

import time
from typing import Annotated, Final

from pydantic import Field, ValidationError
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError
from rq import Queue

from preflight.client.job_state import JobRecord
from preflight.errors import InvalidConfig
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.redis.retry import is_wrong_type
from preflight.redis.untrusted.values import Refused, as_json
from preflight.wire import JobId, Text, Timestamp
from preflight.wire.base import Wire

MAX_BYTES: Final = 4096
"""Most bytes of a request."""


class CannotDelete(InvalidConfig):
    """The job has not ended, or is not known."""


class Deletion(Wire):
    """A request to delete a job."""

    rq_id: JobId
    at: Timestamp
    by: Annotated[str, Field(max_length=200)] = ""
    refused: Text | None = None
    """Why the worker that took the request did not carry it out."""


def request_deletion(queue: Queue, record: JobRecord, by: str) -> None:
    """Have a worker delete a job.

    Raises:
        CannotDelete: it has not ended, or is not known.
        redis.exceptions.RedisError: Redis did not take it.
    """
    if record.status == "unknown":
        raise CannotDelete(f"job {record.job_id!r} is not known; there is nothing to delete", field="job_id")
    if record.is_active:
        raise CannotDelete(
            f"job {record.job_id!r} is {record.rq_status or record.status}; cancel it, and delete it once it has ended",
            field="job_id",
        )
    asked = Deletion(rq_id=record.rq_id, at=time.time(), by=by[:200])
    queue.connection.hset(keys.deletions(queue.name), record.job_id, asked.model_dump_json(exclude_none=True))


def read_deletion(redis: Redis, queue: str, job_id: str) -> Deletion | None:
    """Return the request to delete a job; None where there is none, or it cannot be read."""
    try:
        stored = redis.hget(keys.deletions(queue), job_id)
    except ResponseError:  # a key of another type, or no permission
        return None
    return None if stored is None else decode(stored)


def decode(stored: bytes | str) -> Deletion | None:
    """Return a stored request; None where it is not valid."""
    try:
        return Deletion.model_validate(as_json(text(stored), MAX_BYTES))
    except (Refused, ValidationError):
        return None


def deleted_at(redis: Redis, job_id: str) -> float | None:
    """Return when the job of this id was deleted, seconds since the epoch; None: it was not, or this user may not ask.

    Raises:
        redis.exceptions.RedisError: Redis did not answer.
    """
    try:
        return redis.zscore(keys.DELETED, job_id)
    except NoPermissionError:
        return None
    except ResponseError as error:
        if is_wrong_type(error):
            return None
        raise


def require_not_deleted(redis: Redis, job_id: str) -> None:
    """Raise `InvalidConfig` for the id of a deleted job; raises `RedisError`."""
    at = deleted_at(redis, job_id)
    if at is not None:
        day = time.strftime("%Y-%m-%d", time.gmtime(min(max(at, 0.0), 1e10)))
        raise InvalidConfig(
            f"job_id is {job_id!r}, the id of a job that was deleted on {day} and is not trained again; take another "
            "one",
            field="job_id",
        )
