"""Job state: the state hash of the events and RQ's job hash, read and merged."""

import base64
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, get_args

from pydantic import JsonValue, ValidationError
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from rq import Queue

from preflight.client.job_ids import find_job_ids, find_waiting, read_arguments, resolve
from preflight.client.results import PAGE_SIZE
from preflight.errors import InvalidConfig
from preflight.redis import keys
from preflight.redis.replies import text, texts
from preflight.wire import ACTIVE_STATUSES, MAX_TEXT_LENGTH, JobState, Status, TrainResult, is_job_id, read_result
from preflight.wire import read_job as read_request
from preflight.wire.configuration import request_of

STATUS_BY_RQ_STATUS: Final[Mapping[str, Status]] = {
    "created": "queued", "queued": "queued", "deferred": "queued", "scheduled": "queued", "ready_to_enqueue": "queued",
    "rate_limited": "queued", "started": "running", "finished": "finished", "failed": "failed", "stopped": "cancelled",
    "canceled": "cancelled",
}  # fmt: skip
STATUSES: Final[Mapping[str, Status]] = {status: status for status in get_args(Status)}
STATE_FIELDS: Final = tuple(JobState.model_fields)
OF_AN_END: Final = ("reason", "field", "message")
"""Fields of the state that say why a job ended."""
MAX_REQUEST_BYTES: Final = 1 << 20
"""Most bytes of the requests in one list; a thousand jobs have 400 KiB, and parsed JSON takes up to 20 times that."""
MAX_FAILURE_BYTES: Final = 64 * 1024
"""Most bytes of an unpacked failure, whose last line is shown."""
REASON: Final = re.compile(r"[a-z_]{1,64}")
"""A reason in front of its message, as a worker records both with RQ."""
RQ_FIELDS: Final = ("status", "enqueued_at", "created_at")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Fields of a job's state hash and of RQ's job hash; empty where there is none."""

    job_id: str
    rq_id: str
    """RQ's id of the job; often the same."""
    own: Mapping[str, str]
    rq: Mapping[str, str]
    asked: Mapping[str, JsonValue] = field(default_factory=dict)
    """Request, data set and model of a job that waits, from its payload; see `with_requests`."""

    @property
    def newest_rq_id(self) -> str:
        """RQ's id according to the job's events: several RQ ids may have carried the same job."""
        if not self.own:
            return self.rq_id
        rq_id = self.own.get("rq_id", self.job_id)
        return rq_id if is_job_id(rq_id) else self.job_id

    @property
    def rq_status(self) -> Status | None:
        """Status by RQ; None where RQ has no such job."""
        return STATUS_BY_RQ_STATUS.get(self.rq.get("status", ""))

    @property
    def status(self) -> Status:
        """Status by the job's events, or RQ's where that is newer."""
        rq_status: Status = self.rq_status or "unknown"
        status = STATUSES.get(self.own.get("status", rq_status), rq_status)
        # A killed supervisor publishes no event, and no supervisor knows that its job will be retried.
        outdated = (status, rq_status) in (("running", "failed"), ("running", "queued"))
        return rq_status if outdated or self.is_retried else status

    @property
    def is_retried(self) -> bool:
        """Whether RQ has the job in its queue again, after the end that its events report."""
        return self.rq_status == "queued" and self.own.get("status") in ("failed", "cancelled")

    @property
    def is_active(self) -> bool:
        """Whether more events are expected; RQ decides on a retry after `job_failed`, so its status goes first."""
        return (self.rq_status or self.status) in ACTIVE_STATUSES

    @property
    def enqueued_at(self) -> float | None:
        """Time of enqueueing, or of creation where RQ has none, seconds since the epoch; None where RQ has neither."""
        try:
            return datetime.fromisoformat(self.rq.get("enqueued_at") or self.rq["created_at"]).timestamp()
        except (KeyError, ValueError, OverflowError):
            return None

    @property
    def updated_at(self) -> float:
        """Time of the last event, or of the enqueueing, seconds since the epoch; 0 where neither is known."""
        try:
            at = float(self.own["updated_at"])
        except (KeyError, ValueError):
            return self.enqueued_at or 0.0
        last = at if math.isfinite(at) else 0.0
        return max(last, self.enqueued_at or 0.0) if self.is_retried else last

    def state(self) -> JobState:
        """Return the state without the invalid fields of the state hash."""
        rq_id = None if self.rq_id == self.job_id else self.rq_id
        rq_status = None if self.rq_status is None else self.rq["status"]
        header = {"job_id": self.job_id, "rq_id": rq_id, "status": self.status, "rq_status": rq_status}
        fields = {"updated_at": self.enqueued_at, **self.asked, **self.own, **header}
        if self.is_retried:
            fields = {name: value for name, value in fields.items() if name not in OF_AN_END}
            fields["updated_at"] = self.updated_at
        try:
            return JobState.model_validate(fields)
        except ValidationError as error:
            # Without the input of each error, which may be megabytes.
            invalid = {found["loc"][0] for found in error.errors(include_input=False)} - header.keys()
            return JobState.model_validate({name: value for name, value in fields.items() if name not in invalid})


def read_job(redis: Redis, given_id: str, queue: Queue | None = None, rq_id: str | None = None) -> JobRecord:
    """Return the record of one job, by its id or RQ's.

    Where a job has an id that is RQ's of another, the former is meant.

    Args:
        redis: a connection.
        given_id: the job's id, or RQ's.
        queue: where a job that is not known by this id is searched among those that wait; None: it is not.
        rq_id: RQ's id, where it is known.

    Raises:
        redis.exceptions.NoPermissionError: this user may not read jobs.
    """
    rq_id = rq_id or given_id
    (record,) = read_jobs(redis, {given_id: rq_id})
    if record.own:
        return record
    job_id = find_job_ids(redis, [rq_id])[rq_id]
    if job_id != rq_id:
        return read_jobs(redis, {job_id: rq_id})[0]
    waiting = None if record.rq or queue is None else find_waiting(redis, queue, given_id)
    return record if waiting is None else read_jobs(redis, {given_id: waiting})[0]


def read_jobs(redis: Redis, ids: Mapping[str, str], own_fields: tuple[str, ...] = STATE_FIELDS) -> list[JobRecord]:
    """Return a record for each job id, in one round trip per `PAGE_SIZE` jobs, or two where RQ has other ids.

    Args:
        redis: a connection.
        ids: job id -> RQ's id, which counts where the job's events do not name another.
        own_fields: fields of the state hash; `rq_id` is among them.

    Raises:
        redis.exceptions.NoPermissionError: this user may not read jobs.
    """
    pairs = [*ids.items()]
    pages = (pairs[first : first + PAGE_SIZE] for first in range(0, len(pairs), PAGE_SIZE))
    return [record for page in pages for record in _read_page(redis, page, own_fields)]


def with_requests(redis: Redis, records: Sequence[JobRecord]) -> list[JobRecord]:
    """Return the records, those of waiting jobs with the request in their payloads, within the bounds of `job_ids`.

    Requests of the others are kept up to `MAX_REQUEST_BYTES`, first come, first served.
    """
    waiting = [record.rq_id for record in records if record.status == "queued" and "request" not in record.own]
    found = read_arguments(redis, waiting, _asked) if waiting else {}
    kept, left = [], MAX_REQUEST_BYTES
    for record in records:
        left -= len(record.own.get("request", ""))
        if left < 0:
            record = replace(record, own={name: value for name, value in record.own.items() if name != "request"})
        kept.append(replace(record, asked=found[record.rq_id]) if record.rq_id in found else record)
    return kept


def _asked(_: str, arguments: Sequence[object]) -> dict[str, JsonValue]:
    """Return the fields of the state that a payload has; none where it would be refused."""
    try:
        job = read_request(arguments[0])
        spec = job.spec()
    except (IndexError, InvalidConfig, ValueError):
        return {}
    return {"dataset": spec.dataset, "model": spec.model, "request": request_of(job)}


def _read_page(redis: Redis, page: Sequence[tuple[str, str]], own_fields: tuple[str, ...]) -> list[JobRecord]:
    states = [(keys.state(job_id), own_fields) for job_id, _ in page]
    found = _read_fields(redis, [*states, *((keys.rq_job(rq_id), RQ_FIELDS) for _, rq_id in page)])
    records = [
        JobRecord(job_id, rq_id, own, rq)
        for (job_id, rq_id), own, rq in zip(page, found[: len(page)], found[len(page) :], strict=True)
    ]
    outdated = [record for record in records if record.newest_rq_id != record.rq_id]
    if not outdated:
        return records
    newer = _read_fields(redis, [(keys.rq_job(record.newest_rq_id), RQ_FIELDS) for record in outdated])
    renewed = {
        record.job_id: replace(record, rq_id=record.newest_rq_id, rq=rq)
        for record, rq in zip(outdated, newer, strict=True)
    }  # fmt: skip
    return [renewed.get(record.job_id, record) for record in records]


def _read_fields(redis: Redis, reads: Sequence[tuple[str, tuple[str, ...]]]) -> list[dict[str, str]]:
    """Return the fields of hashes, in one round trip; none of a key of another type."""
    pipe = redis.pipeline(transaction=False)
    encoded = {names: [name.encode() for name in names] for _, names in reads}  # once, not by redis-py for each key
    for key, names in reads:
        pipe.hmget(key, encoded[names])
    replies: list[object] = pipe.execute(raise_on_error=False)
    for reply in replies:
        if isinstance(reply, NoPermissionError):
            raise reply
    return [_fields(names, values) for (_, names), values in zip(reads, replies, strict=True)]


def read_job_result(redis: Redis, job_id: str) -> TrainResult | None:
    """Return the stored result; None where there is none, or it cannot be read."""
    try:
        stored = redis.get(keys.result(resolve(redis, job_id)))
        return None if stored is None else read_result(stored)
    except (ResponseError, ValidationError):  # a key of another type, or of a newer version
        return None


def _fields(names: Sequence[str], values: object) -> dict[str, str]:
    """Return the fields that HMGET found; empty for an error, such as a key of another type."""
    if not isinstance(values, list):
        return {}
    return {name: text(value) for name, value in zip(names, values, strict=True) if value is not None}


def stored_failure(redis: Redis, rq_id: str) -> dict[str, str]:
    """Return `reason` and `message` of a failed job by RQ's stream of results; empty where it holds none."""
    with suppress(RedisError, ValueError, UnicodeError, zlib.error):  # another type, no permission, not RQ's
        for _, fields in redis.xrevrange(keys.rq_results(rq_id), count=1) or []:
            packed = base64.b64decode(texts(fields or {}).get("exc_string", ""))
            said = zlib.decompressobj().decompress(packed, MAX_FAILURE_BYTES).decode(errors="replace").strip()
            reason, separator, message = said.partition(": ")
            if separator and REASON.fullmatch(reason):
                return {"reason": reason, "message": message[:MAX_TEXT_LENGTH]}
            return {"message": said.rpartition("\n")[2][:MAX_TEXT_LENGTH]} if said else {}
    return {}
