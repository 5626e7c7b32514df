"""Job state: the state hash of the events and RQ's job hash, read and merged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, get_args

from pydantic import ValidationError
from redis import Redis
from redis.exceptions import NoPermissionError, ResponseError

from worker.broker import keys
from worker.broker.replies import text
from worker.client.results import PAGE_SIZE
from worker.wire import ACTIVE_STATUSES, JobState, Status, TrainResult, read_result

STATUS_BY_RQ_STATUS: Final[Mapping[str, Status]] = {
    "created": "queued", "queued": "queued", "deferred": "queued", "scheduled": "queued", "ready_to_enqueue": "queued",
    "rate_limited": "queued", "started": "running", "finished": "finished", "failed": "failed", "stopped": "cancelled",
    "canceled": "cancelled",
}  # fmt: skip
STATUSES: Final[Mapping[str, Status]] = {status: status for status in get_args(Status)}
STATE_FIELDS: Final = tuple(JobState.model_fields)
RQ_FIELDS: Final = ("status", "enqueued_at")


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Fields of a job's state hash and of RQ's job hash; empty where there is none."""

    job_id: str
    own: Mapping[str, str]
    rq: Mapping[str, str]

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
        outdated = (status, rq_status) in (("running", "failed"), ("running", "queued"), ("failed", "queued"))
        return rq_status if outdated else status

    @property
    def is_active(self) -> bool:
        """Whether more events are expected; RQ decides on a retry after `job_failed`, so its status goes first."""
        return (self.rq_status or self.status) in ACTIVE_STATUSES

    @property
    def enqueued_at(self) -> float | None:
        """Seconds since the epoch; None where RQ does not say."""
        try:
            return datetime.fromisoformat(self.rq["enqueued_at"]).timestamp()
        except (KeyError, ValueError, OverflowError):
            return None

    @property
    def updated_at(self) -> float:
        """Time of the last event, or of the enqueueing, seconds since the epoch; 0 where neither is known."""
        try:
            at = float(self.own["updated_at"])
        except (KeyError, ValueError):
            return self.enqueued_at or 0.0
        return at if math.isfinite(at) else 0.0

    def state(self) -> JobState:
        """Return the state; invalid fields of the state hash discard the whole hash."""
        rq_status = None if self.rq_status is None else self.rq["status"]
        header = {"job_id": self.job_id, "status": self.status, "rq_status": rq_status}
        try:
            return JobState.model_validate({"updated_at": self.enqueued_at, **self.own, **header})
        except ValidationError:
            return JobState.model_validate(header)


def read_job(redis: Redis, job_id: str) -> JobRecord:
    """Return the record of one job; raises as `read_jobs` does."""
    return read_jobs(redis, [job_id])[0]


def read_jobs(redis: Redis, ids: Sequence[str], own_fields: Sequence[str] = STATE_FIELDS) -> list[JobRecord]:
    """Return a record for each id, in one round trip per `PAGE_SIZE` jobs.

    Raises:
        redis.exceptions.NoPermissionError: this user may not read jobs.
    """
    found: list[JobRecord] = []
    for first in range(0, len(ids), PAGE_SIZE):
        page = ids[first : first + PAGE_SIZE]
        pipe = redis.pipeline(transaction=False)
        for job_id in page:
            pipe.hmget(keys.state(job_id), own_fields)
            pipe.hmget(keys.rq_job(job_id), RQ_FIELDS)
        replies: list[object] = pipe.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, NoPermissionError):
                raise reply
        found += [
            JobRecord(job_id, _fields(own_fields, own), _fields(RQ_FIELDS, rq))
            for job_id, own, rq in zip(page, replies[::2], replies[1::2], strict=True)
        ]
    return found


def read_job_result(redis: Redis, job_id: str) -> TrainResult | None:
    """Return the stored result; None where there is none, or it cannot be read."""
    try:
        stored = redis.get(keys.result(job_id))
        return None if stored is None else read_result(stored)
    except (ResponseError, ValidationError):  # a key of another type, or of a newer version
        return None


def _fields(names: Sequence[str], values: object) -> dict[str, str]:
    """Return the fields that HMGET found; empty for an error, such as a key of another type."""
    if not isinstance(values, list):
        return {}
    return {name: text(value) for name, value in zip(names, values, strict=True) if value is not None}
