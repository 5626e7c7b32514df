"""A job as read from Redis: untrusted, read within bounds, or rejected as poison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import JsonValue, TypeAdapter
from redis import Redis
from rq.exceptions import NoSuchJobError
from rq.job import JobStatus

from preflight.queue.options import FIELDS as OPTION_FIELDS
from preflight.queue.options import RqOptions, parse_options, whole
from preflight.queue.payload import MAX_NAME_LENGTH, PoisonMessage, decode_payload, excerpt, poison
from preflight.redis import keys
from preflight.redis.lua import run_script
from preflight.redis.untrusted.values import Refused, as_json
from preflight.wire import JOB_TIMEOUT, is_job_id

MAX_FIELDS: Final = 64
"""Fields of a job's hash; RQ writes about half as many."""
MAX_FIELD_BYTES: Final = 256 * 1024
"""Most bytes of one field as it is stored."""
MAX_TIMEOUT: Final = 30 * 86_400
"""Most seconds for which a job may run."""
MAX_TTL: Final = 10 * 365 * 86_400
"""Seconds of a time to live; RQ's default stands in for a longer one."""
FIELDS: Final = (
    "data", "status", "timeout", "result_ttl", "failure_ttl", "ttl", "origin", "description", "meta", "created_at",
    "enqueued_at", *OPTION_FIELDS,
)  # fmt: skip
"""Fields read from a job's hash. Dependencies and old results are not."""
FIELDS_READ = TypeAdapter(list[object])


@dataclass(frozen=True, slots=True, kw_only=True)
class UntrustedJob:
    """The bounded parts of a job. RQ's own code never gets it, so nothing of it is imported or called."""

    id: str
    status: JobStatus
    func_name: str
    args: Sequence[JsonValue]
    kwargs: Mapping[str, JsonValue]
    timeout: int
    """Seconds for which it may run; -1: for ever."""
    result_ttl: int | None
    """Seconds for which RQ keeps a result; -1: for ever, None: RQ's default."""
    failure_ttl: int | None
    ttl: int | None
    """Seconds for which it may wait."""
    options: RqOptions
    meta: Mapping[str, JsonValue]
    enqueued_at: float | None
    """Seconds since the epoch; None where RQ does not say."""
    fields: Mapping[str, bytes]
    """Fields as they were read; the job's hash is restored from them should Redis lose its data."""


def fetch_job(job_id: bytes | str, connection: Redis) -> UntrustedJob:
    """Return the job of this id, read within bounds.

    Raises:
        NoSuchJobError: there is none; it expired, or was deleted.
        PoisonMessage: the data cannot be a job.
        redis.exceptions.RedisError: Redis did not answer; it may be called again.
    """
    name = job_id if isinstance(job_id, str) else job_id.decode(errors="surrogateescape")
    if not is_job_id(name):
        raise PoisonMessage(f"the id is {excerpt(name)}, but must be 1 to 64 letters, digits, '.', '_' or '-'", name)
    return parse(name, _read(name, connection))


def parse(job_id: str, fields: Mapping[str, bytes]) -> UntrustedJob:
    """Return the job in the fields of a hash; raises `PoisonMessage`."""
    if "data" not in fields:
        raise poison(job_id, "has no data; enqueue it again")
    function, args, kwargs = decode_payload(job_id, fields["data"])
    return UntrustedJob(
        id=job_id,
        status=_status(fields.get("status")),
        func_name=function,
        args=args,
        kwargs=kwargs,
        timeout=_timeout(job_id, fields.get("timeout")),
        result_ttl=whole(fields.get("result_ttl"), -1, MAX_TTL),
        failure_ttl=whole(fields.get("failure_ttl"), -1, MAX_TTL),
        ttl=whole(fields.get("ttl"), 1, MAX_TTL),
        options=parse_options(fields),
        meta=parse_meta(fields.get("meta")),
        enqueued_at=_time(fields.get("enqueued_at")),
        fields=fields,
    )


def _read(job_id: str, connection: Redis) -> dict[str, bytes]:
    """Return the fields that the hash has; raises `NoSuchJobError`, `PoisonMessage`."""
    answer = run_script(
        connection, "rq/read_job", FIELDS_READ, keys=[keys.rq_job(job_id)], args=[MAX_FIELDS, MAX_FIELD_BYTES, *FIELDS]
    )
    match answer:
        case [b"none"]:
            raise NoSuchJobError(f"there is no job {job_id}")
        case [bytes(kind)]:
            raise poison(job_id, f"is a {kind.decode()} in Redis, but must be a hash")
        case [_, int(count)]:
            raise poison(job_id, f"has {count} fields, but may have at most {MAX_FIELDS}")
        case [_, _, bytes(name), int(size)]:
            raise poison(job_id, f"has {size} bytes of {name.decode()}, but may have at most {MAX_FIELD_BYTES}")
        case [_, _, list(values)]:
            return {name: value for name, value in zip(FIELDS, values, strict=True) if value is not None}
    raise AssertionError(f"read_job.lua returned {answer!r}")


def _timeout(job_id: str, value: bytes | None) -> int:
    if value is None:
        return JOB_TIMEOUT
    timeout = whole(value, -1, MAX_TIMEOUT)
    if timeout is None or timeout == 0:
        raise poison(
            job_id, f"has the timeout {excerpt(value)}, but it must be 1 to {MAX_TIMEOUT} whole seconds, or -1"
        )
    return timeout


def _status(value: bytes | None) -> JobStatus:
    """Return RQ's status; `queued` for anything else."""
    try:
        return JobStatus((value or b"")[:MAX_NAME_LENGTH].decode(errors="replace"))
    except ValueError:
        return JobStatus.QUEUED


def _time(value: bytes | None) -> float | None:
    """Return a time as RQ writes it, in seconds since the epoch; None for anything else."""
    try:
        return datetime.fromisoformat((value or b"")[:MAX_NAME_LENGTH].decode()).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_meta(value: bytes | None) -> dict[str, JsonValue]:
    """Return the job's meta; empty where it is no JSON object."""
    try:
        meta = as_json(value or b"", MAX_FIELD_BYTES)
    except Refused:
        return {}
    return meta if isinstance(meta, dict) else {}
