"""A job as it comes out of Redis: untrusted. It is read within bounds, or it is poison."""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue
from redis import Redis
from rq.exceptions import NoSuchJobError
from rq.job import JobStatus

from training.errors import InvalidConfig, PreflightError
from worker.broker import keys
from worker.wire import FUNCTION, JOB_TIMEOUT, is_job_id

ALLOWED: Final = frozenset({FUNCTION})
"""Everything a queue may name; nothing is imported by a name from Redis."""
MOST_FIELDS: Final = 64
"""Fields of a job's hash; RQ writes about half as many."""
LARGEST_FIELD: Final = 256 * 1024
"""Bytes of one field as it is stored."""
LARGEST_PAYLOAD: Final = 1024 * 1024
"""Bytes of a payload once it is decompressed. A TrainJob has fewer, but is refused by name and not as poison."""
DEEPEST: Final = 32
"""Levels of nesting in a payload; a TrainJob has four."""
LONGEST_NAME: Final = 256
"""Characters of a function's name."""
LONGEST_TIMEOUT: Final = 30 * 86_400
"""Seconds for which a job may run."""
LONGEST_TTL: Final = 10 * 365 * 86_400
"""Seconds for which anything may be kept; what asks for more gets RQ's default."""
MOST_RETRIES: Final = 100
"""What asks for more gets these."""
FIELDS: Final = (
    "data", "status", "timeout", "result_ttl", "failure_ttl", "ttl", "retries_left", "number_of_retries", "origin",
    "description", "meta", "created_at", "enqueued_at",
)  # fmt: skip
"""What is read of a job's hash. Callbacks, webhooks, dependencies, groups, repeats and old results are not."""

READ: Final = """
-- Read fields of a job's hash, unless it is too large to be looked at.
-- KEYS: the hash   ARGV: most fields, largest field, then the fields to read
-- Returns {type of the key}, {hash, fields}, {hash, fields, field, bytes} or {hash, fields, values}.
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'hash' then
  return {kind}
end
local count = redis.call('HLEN', KEYS[1])
if count > tonumber(ARGV[1]) then
  return {kind, count}
end
for number = 3, #ARGV do
  local size = redis.call('HSTRLEN', KEYS[1], ARGV[number])
  if size > tonumber(ARGV[2]) then
    return {kind, count, ARGV[number], size}
  end
end
return {kind, count, redis.call('HMGET', KEYS[1], unpack(ARGV, 3))}
"""
"""One script, so that nothing grows between the look and the read."""

Payload = tuple[str, list[JsonValue], dict[str, JsonValue]]
"""Function, positional and keyword arguments."""


class Poison(PreflightError):
    """What stands in Redis cannot be a job; running it again would not help, nor would reading it."""

    reason = "poison"

    def __init__(self, message: str, job_id: str) -> None:
        super().__init__(message)
        self.job_id = job_id
        """As it stands in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeJob:
    """What was understood of a job. None of RQ's own code gets to see it, so nothing of it is imported or called."""

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
    retries_left: int
    meta: Mapping[str, JsonValue]
    fields: Mapping[str, bytes]
    """As they were read: what the job's hash is restored from should Redis lose its data."""


def load(job_id: bytes | str, connection: Redis) -> SafeJob:
    """Return the job of this id, read within bounds.

    Raises:
        NoSuchJobError: there is none; it expired, or was deleted.
        Poison: what is there cannot be a job.
        redis.exceptions.RedisError: Redis did not answer; it may be asked again.
    """
    name = job_id if isinstance(job_id, str) else job_id.decode(errors="surrogateescape")
    if not is_job_id(name):
        raise Poison(f"the id is {_shown(name)}, but must be 1 to 64 letters, digits, '.', '_' or '-'", name)
    return parse(name, _read(name, connection))


def parse(job_id: str, fields: Mapping[str, bytes]) -> SafeJob:
    """Return the job in the fields of a hash; raises `Poison`."""
    if "data" not in fields:
        raise _poison(job_id, "has no data; enqueue it again")
    function, args, kwargs = _payload(job_id, fields["data"])
    return SafeJob(
        id=job_id,
        status=_status(fields.get("status")) or JobStatus.QUEUED,
        func_name=function,
        args=args,
        kwargs=kwargs,
        timeout=_timeout(job_id, fields.get("timeout")),
        result_ttl=_whole(fields.get("result_ttl"), -1, LONGEST_TTL),
        failure_ttl=_whole(fields.get("failure_ttl"), -1, LONGEST_TTL),
        ttl=_whole(fields.get("ttl"), 1, LONGEST_TTL),
        retries_left=min(_whole(fields.get("retries_left"), 0, None) or 0, MOST_RETRIES),
        meta=_meta(fields.get("meta")),
        fields=fields,
    )


def _read(job_id: str, connection: Redis) -> dict[str, bytes]:
    """Return the fields that the hash has; raises `NoSuchJobError`, `Poison`."""
    answer = connection.register_script(READ)(keys=[keys.rq_job(job_id)], args=[MOST_FIELDS, LARGEST_FIELD, *FIELDS])
    match answer:
        case [b"none"]:
            raise NoSuchJobError(f"there is no job {job_id}")
        case [bytes(kind)]:
            raise _poison(job_id, f"is a {kind.decode()} in Redis, but must be a hash")
        case [_, int(count)]:
            raise _poison(job_id, f"has {count} fields, but may have at most {MOST_FIELDS}")
        case [_, _, bytes(name), int(size)]:
            raise _poison(job_id, f"has {size} bytes of {name.decode()}, but may have at most {LARGEST_FIELD}")
        case [_, _, list(values)]:
            return {name: value for name, value in zip(FIELDS, values, strict=True) if value is not None}
    raise AssertionError(f"READ returned {answer!r}")


def _payload(job_id: str, data: bytes) -> Payload:
    """Return what `data` asks for; raises `Poison`."""
    raw = _decompressed(job_id, data)
    if raw.startswith(b"\x80") or (raw.endswith(b".") and not raw.startswith(b"[")):
        raise _poison(job_id, "is a pickle, which is not read; enqueue it with rq.serializers.JSONSerializer")
    try:
        payload: JsonValue = json.loads(raw.decode())
    except UnicodeDecodeError:
        raise _poison(job_id, "is in a serialization that is not read; enqueue it with JSONSerializer") from None
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits are a ValueError, too.
        raise _poison(job_id, f"is not JSON ({_shown(str(error))}); enqueue it with JSONSerializer") from None
    if _deeper_than(payload, DEEPEST):
        raise _poison(job_id, f"is nested more than {DEEPEST} levels deep; flatten it")
    match payload:
        case [str(function), _, list(args), dict(kwargs)] if len(function) <= LONGEST_NAME:
            return function, args, kwargs
    raise _poison(job_id, "is not [function, null, [arguments], {keywords}]; enqueue it with RQ")


def _decompressed(job_id: str, data: bytes) -> bytes:
    """Return `data` without its compression, if it has one; RQ reads both."""
    inflate = zlib.decompressobj()
    try:
        raw = inflate.decompress(data, LARGEST_PAYLOAD + 1)
    except zlib.error:
        return data
    if len(raw) > LARGEST_PAYLOAD:
        raise _poison(job_id, f"is more than {LARGEST_PAYLOAD} bytes when decompressed; shorten it")
    if not inflate.eof:
        raise _poison(job_id, "is cut off; enqueue it again")
    return raw


def _timeout(job_id: str, value: bytes | None) -> int:
    if value is None:
        return JOB_TIMEOUT
    timeout = _whole(value, -1, LONGEST_TIMEOUT)
    if timeout is None or timeout == 0:
        raise _poison(
            job_id, f"has the timeout {_shown(value)}, but it must be 1 to {LONGEST_TIMEOUT} whole seconds, or -1"
        )
    return timeout


def _poison(job_id: str, what: str) -> Poison:
    return Poison(f"job {job_id} {what}", job_id)


def require_allowed(function: str | None) -> None:
    """Raise `InvalidConfig` unless a queue may name `function`."""
    if function not in ALLOWED:
        raise InvalidConfig(
            f"function {_shown(function)} is not allowed on this queue; enqueue {FUNCTION!r}", field="function"
        )


def _shown(value: object) -> str:
    """Return a value from Redis on one line, escaped, and cut where it is long."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."


def _text(value: bytes | None) -> str:
    return "" if value is None else value[:LONGEST_NAME].decode(errors="replace")


def _whole(value: bytes | None, least: int, most: int | None) -> int | None:
    """Return a whole number in plain digits; None for anything else, and beyond the bounds."""
    if value is None or len(value) > 18 or not value.removeprefix(b"-").isdigit():
        return None
    number = int(value)
    return number if number >= least and (most is None or number <= most) else None


def _status(value: bytes | None) -> JobStatus | None:
    try:
        return JobStatus(_text(value))
    except ValueError:
        return None


def _meta(value: bytes | None) -> dict[str, JsonValue]:
    """Return the job's notes; those that are no JSON object are forgotten."""
    try:
        meta: JsonValue = json.loads(value.decode()) if value else None
    except (ValueError, RecursionError):
        return {}
    return meta if isinstance(meta, dict) and not _deeper_than(meta, DEEPEST) else {}


def _deeper_than(value: JsonValue, levels: int) -> bool:
    """Whether `value` is nested deeper; level by level, because it may be deeper than the stack."""
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)
