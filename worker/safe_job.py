"""A job as it comes out of Redis: untrusted. It is read within bounds, or it is poison."""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from pydantic import JsonValue
from redis import Redis
from redis.client import Pipeline
from rq import Queue
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer
from rq.utils import now, utcparse

from training.errors import InvalidConfig, PreflightError
from worker.rq_job import AnyIdJob
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
MOST_RETRIES: Final = 10
"""What asks for more gets these."""
FIELDS: Final = (
    "data", "status", "timeout", "result_ttl", "failure_ttl", "ttl", "retries_left", "number_of_retries",
    "enqueue_at_front_on_retry", "origin", "meta", "created_at", "enqueued_at", "started_at", "ended_at",
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


class SafeJob(AnyIdJob):
    """A job that runs an allowed function and calls, imports or unpickles nothing else from Redis."""

    @classmethod
    def fetch(cls, id: str, connection: Redis | None = None, serializer: object = None) -> "SafeJob":  # noqa: ARG003 - RQ's
        """Return the job, read within bounds; whatever serializer is named, it is JSON.

        Raises:
            NoSuchJobError: there is none.
            Poison: what is there cannot be a job.
        """
        if connection is None:
            raise TypeError("SafeJob.fetch() needs a connection")
        if not is_job_id(id):
            raise Poison(f"the id is {_shown(id)}, but must be 1 to 64 letters, digits, '.', '_' or '-'", id)
        job = cls(id, connection, JSONSerializer)
        job.refresh()
        return job

    @classmethod
    def fetch_many(cls, job_ids: Iterable[str], connection: Redis, serializer: object = None) -> list[Job | None]:  # noqa: ARG003
        """Return None for each id: RQ asks for dependents with it, to put them into whatever queue they name."""
        return [None for _ in job_ids]

    def refresh(self) -> None:
        """Read the job again from its hash; raises as `fetch` does."""
        self.restore(self._read(FIELDS))

    def restore(self, raw_data: Mapping[str, bytes]) -> None:
        """Take over the fields that are used, and nothing of the others; raises `Poison`."""
        if "data" not in raw_data:
            raise self._poison("has no data; enqueue it again")
        function, args, kwargs = self._payload(raw_data["data"])
        self._func_name, self._args, self._kwargs, self._instance = function, args, kwargs, None
        self._data = JSONSerializer.dumps([function, None, args, kwargs])
        self.created_at = _date(raw_data.get("created_at")) or now()
        self.enqueued_at = _date(raw_data.get("enqueued_at"))
        self.started_at = _date(raw_data.get("started_at"))
        self.ended_at = _date(raw_data.get("ended_at"))
        self.origin = _text(raw_data.get("origin"))
        self._status = _status(raw_data.get("status")) or JobStatus.QUEUED
        self.timeout = self._timeout(raw_data.get("timeout"))
        self.result_ttl = _whole(raw_data.get("result_ttl"), -1, LONGEST_TTL)
        self.failure_ttl = _whole(raw_data.get("failure_ttl"), -1, LONGEST_TTL)
        self.ttl = _whole(raw_data.get("ttl"), 1, LONGEST_TTL)
        retries = _whole(raw_data.get("retries_left"), 0, None)
        self.retries_left = None if retries is None else min(retries, MOST_RETRIES)
        self.number_of_retries = _whole(raw_data.get("number_of_retries"), 0, LONGEST_TTL)
        self.enqueue_at_front_on_retry = raw_data.get("enqueue_at_front_on_retry") == b"1"
        self.meta = _meta(raw_data.get("meta"))

    def get_status(self, refresh: bool = True) -> JobStatus:
        """Return the status, by default as Redis has it now.

        Raises:
            InvalidJobOperation: the hash is gone, or is no job's any more.
        """
        if refresh:
            try:
                status = _status(self._read(("status",)).get("status"))
            except (NoSuchJobError, Poison):
                status = None
            if status is None:
                raise InvalidJobOperation(f"job {self.id} has no status any more")
            self._status = status
        return self._status

    @property
    def func(self) -> Callable[..., object]:
        """The allowed function that this job names.

        Raises:
            InvalidConfig: it names another one.
        """
        try:
            require_allowed(self.func_name)
        except InvalidConfig:
            self.retries_left = 0
            raise
        from worker.jobs import train  # late: it reads what is loaded here

        return train

    @property
    def instance(self) -> None:
        """Nothing: methods of objects from Redis are not called."""
        return

    @instance.setter
    def instance(self, value: object) -> None:
        """Ignore an object from Redis."""

    @property
    def success_callback(self) -> None:
        """Nothing: callbacks from Redis are not imported."""
        return

    @property
    def failure_callback(self) -> None:
        """Nothing: callbacks from Redis are not imported."""
        return

    @property
    def stopped_callback(self) -> None:
        """Nothing: callbacks from Redis are not imported."""
        return

    def send_webhooks(self, status: object, *, exc_string: str | None = None) -> None:
        """Send nothing: URLs from Redis are not called."""

    def _read(self, fields: Sequence[str]) -> dict[str, bytes]:
        """Return the fields that the hash has; raises `NoSuchJobError`, `Poison`."""
        answer = self.connection.register_script(READ)(keys=[self.key], args=[MOST_FIELDS, LARGEST_FIELD, *fields])
        match answer:
            case [b"none"]:
                raise NoSuchJobError(f"there is no job {self.id}")
            case [bytes(kind)]:
                raise self._poison(f"is a {kind.decode()} in Redis, but must be a hash")
            case [_, int(count)]:
                raise self._poison(f"has {count} fields, but may have at most {MOST_FIELDS}")
            case [_, _, bytes(name), int(size)]:
                raise self._poison(f"has {size} bytes of {name.decode()}, but may have at most {LARGEST_FIELD}")
            case [_, _, list(values)]:
                return {name: value for name, value in zip(fields, values, strict=True) if value is not None}
        raise AssertionError(f"READ returned {answer!r}")

    def _payload(self, data: bytes) -> Payload:
        """Return what `data` asks for; raises `Poison`."""
        raw = self._decompressed(data)
        if raw.startswith(b"\x80") or (raw.endswith(b".") and not raw.startswith(b"[")):
            raise self._poison("is a pickle, which is not read; enqueue it with rq.serializers.JSONSerializer")
        try:
            payload: JsonValue = json.loads(raw.decode())
        except UnicodeDecodeError:
            raise self._poison("is in a serialization that is not read; enqueue it with JSONSerializer") from None
        except (ValueError, RecursionError) as error:
            # Numbers of thousands of digits are a ValueError, too.
            raise self._poison(f"is not JSON ({_shown(str(error))}); enqueue it with JSONSerializer") from None
        if _deeper_than(payload, DEEPEST):
            raise self._poison(f"is nested more than {DEEPEST} levels deep; flatten it")
        match payload:
            case [str(function), _, list(args), dict(kwargs)] if len(function) <= LONGEST_NAME:
                return function, args, kwargs
        raise self._poison("is not [function, null, [arguments], {keywords}]; enqueue it with RQ")

    def _decompressed(self, data: bytes) -> bytes:
        """Return `data` without its compression, if it has one; RQ reads both."""
        inflate = zlib.decompressobj()
        try:
            raw = inflate.decompress(data, LARGEST_PAYLOAD + 1)
        except zlib.error:
            return data
        if len(raw) > LARGEST_PAYLOAD:
            raise self._poison(f"is more than {LARGEST_PAYLOAD} bytes when decompressed; shorten it")
        if not inflate.eof:
            raise self._poison("is cut off; enqueue it again")
        return raw

    def _timeout(self, value: bytes | None) -> int:
        if value is None:
            return JOB_TIMEOUT
        timeout = _whole(value, -1, LONGEST_TIMEOUT)
        if timeout is None or timeout == 0:
            raise self._poison(
                f"has the timeout {_shown(value)}, but it must be 1 to {LONGEST_TIMEOUT} whole seconds, or -1"
            )
        return timeout

    def _poison(self, what: str) -> Poison:
        return Poison(f"job {self.id} {what}", self.id)


class SafeQueue(Queue):
    """A queue whose jobs lead to no others."""

    def enqueue_dependents(
        self,
        job: Job,
        pipeline: Pipeline | None = None,
        exclude_job_id: str | None = None,
        refresh_job_status: bool = True,
    ) -> None:
        """Enqueue nothing: whoever can write to Redis could name any job, and any queue to put it into."""


def load(job_id: bytes | str, queue: Queue, connection: Redis) -> SafeJob:
    """Return the job that was taken from `queue` under `job_id`.

    What it saves later holds nothing but what was understood here.

    Raises:
        NoSuchJobError: there is none; it expired, or was deleted.
        Poison: what is there cannot be a job.
        redis.exceptions.RedisError: Redis did not answer; it may be asked again.
    """
    job = SafeJob.fetch(job_id if isinstance(job_id, str) else job_id.decode(errors="surrogateescape"), connection)
    job.origin = queue.name
    return job


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


def _date(value: bytes | None) -> datetime | None:
    try:
        return utcparse(_text(value))
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
