"""Ids of a job: its own, RQ's, and the one under which its events are published."""

from collections.abc import Sequence
from typing import Final

from redis import Redis
from redis.exceptions import ResponseError

from preflight.errors import InvalidConfig
from preflight.redis import keys
from preflight.redis.retry import is_wrong_type
from preflight.redis.untrusted.reads import read_fields, read_value
from preflight.wire import is_job_id

MAX_ID_BYTES: Final = 64


def resolve_job_id(arguments: Sequence[object], rq_id: str) -> str:
    """Return the id of a job: the one in its request, else RQ's.

    A malformed id in the request is ignored here, so that the failure can be published under RQ's id.

    Raises:
        InvalidConfig: RQ's id is malformed too.
    """
    match arguments:
        case [{"job_id": str(own)}, *_] if is_job_id(own):
            return own
    if not is_job_id(rq_id):
        raise InvalidConfig(
            f"job_id is {ascii(rq_id)[:80]}, but must be 1 to 64 letters, digits, '.', '_' or '-'",
            field="job_id",
        )
    return rq_id


def resolve_event_id(connection: Redis, own_id: str, rq_id: str) -> str | None:
    """Return the id under which the end of a job without an attempt is published.

    That is the request's own if no job is known by it, else RQ's: no producer can end the job of another. None: a job
    that RQ has elsewhere owns this id, or runs under it.
    """
    known = (keys.fence(own_id), keys.state(own_id), keys.result(own_id), keys.alias(own_id), keys.rq_job(own_id))
    is_free = own_id == rq_id or _alias(connection, rq_id) == own_id.encode() or not connection.exists(*known)
    found = own_id if is_free else rq_id
    return None if connection.exists(keys.lease(found)) or _is_owned(connection, found, rq_id) else found


def _alias(connection: Redis, rq_id: str) -> bytes | None:
    """Return the id in an alias; None where there is none, or its key has another type."""
    try:
        return read_value(connection, keys.alias(rq_id), MAX_ID_BYTES)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        return None


def _is_owned(connection: Redis, job_id: str, rq_id: str) -> bool:
    """Whether the state of a job, which has not failed, is that of another RQ id."""
    try:
        owner, status = read_fields(connection, keys.state(job_id), ["rq_id", "status"], MAX_ID_BYTES)
    except ResponseError as error:
        if not is_wrong_type(error):
            raise
        return False
    return owner not in (None, rq_id.encode()) and status != b"failed"
