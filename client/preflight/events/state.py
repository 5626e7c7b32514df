"""The job's state in Redis: the fields that an event updates, and events of jobs without an attempt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from preflight.events.counters import counter_increments
from preflight.events.record import EventRecord
from preflight.redis import keys
from preflight.wire import (
    EVENTS_KEPT,
    EXTRA_EVENTS,
    LIFECYCLE_EVENTS,
    STATUS_BY_EVENT,
    AnyEvent,
    BatchAdvice,
    GroupChanged,
    GroupFormed,
    GroupMeasured,
    GroupShort,
    JobWarning,
    MemoryProbed,
    MemoryRanOut,
    PlanAdapted,
    PredictionChecked,
    ProcessorsShared,
    TrainingProfile,
    TrainResult,
    flatten,
)

if TYPE_CHECKING:
    from redis import Redis
    from redis.typing import EncodableT, FieldT

HEADER_FIELDS: Final = ("v", "seq", "job_id", "attempt", "ts", "type")

T = TypeVar("T")


def state_update(event: AnyEvent, record: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the state hash that an event, flattened to `record`, sets."""
    state = {name: value for name, value in latest_fields(event, record).items() if name not in HEADER_FIELDS}
    state["attempt"] = record["attempt"]
    if event.type not in EXTRA_EVENTS:  # a report that comes later makes the job no longer
        state["updated_at"] = record["ts"]
    if event.type == "job_started":
        state["started_at"] = record["ts"]
    if event.type in STATUS_BY_EVENT:
        state["status"] = STATUS_BY_EVENT[event.type]
    return state


def latest_fields(event: AnyEvent, fields: Mapping[str, T]) -> dict[str, T]:
    """Return the `fields` of an event that belong in the job's state."""
    match event:
        case BatchAdvice():  # of batches that the job does not have
            return {}
        case PlanAdapted():
            return {event.field: fields["after"]}
        case ProcessorsShared():
            return {name: fields[name] for name in ("processors", "of_processors", "shared_with")}
        case PredictionChecked():  # its `steps` is not the steps of an epoch, and its cause is temporary
            return {name: fields[name] for name in ("predicted_batch_s", "measured_batch_s", "deviation")}
        case MemoryProbed():  # it is about one micro-batch, not about the job's
            return {}
        case GroupFormed() | GroupChanged():
            return {name: fields[name] for name in ("workers", "members")}
        case GroupMeasured():  # of a group that may not stay
            return {}
        case GroupShort():
            return {"message": fields["message"]}
        case JobWarning() | MemoryRanOut():  # the job continues, so its state has no message
            return {name: value for name, value in fields.items() if name not in ("message", "rank")}
        case TrainingProfile():  # its `steps` is of this process
            return {name: value for name, value in fields.items() if name.endswith("_s")}
    return dict(fields)


def event_record(
    event: AnyEvent, *, began: float | None = None, result: TrainResult | None = None, meta: str | None = None
) -> EventRecord:
    """Return an event as the scripts publish it.

    Args:
        event: event of an attempt, or of a job without one.
        began: when its attempt began, seconds since the epoch.
        result: the job's result, which is stored with it.
        meta: new value of RQ's `job.meta`.
    """
    fields = flatten(event)
    return EventRecord(
        attempt=event.attempt,
        seq=event.seq,
        fields=_interleave(fields),
        state=_interleave(state_update(event, fields)),
        lifecycle=event.type in LIFECYCLE_EVENTS,
        first=event.type == "job_started",
        failure=event.model_dump_json() if event.type == "job_failed" else None,
        result=None if result is None else result.model_dump_json(),
        meta=meta,
        totals=counter_increments(event, began),
    )


def publish(connection: Redis, event: AnyEvent, *, ttl: int, kept: int = EVENTS_KEPT, rq_id: str | None = None) -> None:
    """Publish an event of a job without an attempt: refused, or cancelled in the queue. Attempts use their fence.

    Sets the time to live of the job's keys, `ttl` in seconds, and keeps the newest `kept` events, roughly. `rq_id` is
    RQ's id of the job, where it has another.

    Raises:
        redis.exceptions.RedisError: Redis did not accept it.
    """
    job_id, record = event.job_id, flatten(event)
    pipe = connection.pipeline(transaction=True)
    pipe.xadd(keys.events(job_id), _fields(record), maxlen=kept, approximate=True)
    if event.type in LIFECYCLE_EVENTS:
        pipe.xadd(keys.lifecycle(job_id), _fields(record))
    pipe.hset(keys.state(job_id), mapping=_fields(state_update(event, record)))
    if rq_id is None or rq_id == job_id:
        pipe.delete(keys.alias(job_id))
        pipe.hdel(keys.state(job_id), "rq_id")
    else:  # each id leads to the other
        pipe.set(keys.alias(rq_id), job_id, ex=ttl)
        pipe.hset(keys.state(job_id), "rq_id", rq_id)
    for name, amount in counter_increments(event, began=None).items():
        pipe.hincrbyfloat(keys.TOTALS, name, amount)
    for key in (keys.events, keys.lifecycle, keys.state):
        pipe.expire(key(job_id), ttl)
    pipe.execute()


def request_cancel(connection: Redis, job_id: str, *, ttl: int) -> None:
    """Request the cancellation of a job; its attempt reads it with the next heartbeat.

    Raises:
        redis.exceptions.RedisError: Redis did not accept it.
    """
    pipe = connection.pipeline(transaction=True)  # the key of a job that has just ended must expire
    pipe.hset(keys.cancel(job_id), "at", str(time.time()))
    pipe.expire(keys.cancel(job_id), ttl)
    pipe.execute()


def _interleave(fields: Mapping[str, str]) -> list[str]:
    return [part for pair in fields.items() for part in pair]


def _fields(record: Mapping[str, str]) -> dict[FieldT, EncodableT]:
    """Return the record in redis-py's invariant type."""
    return {name: value for name, value in record.items()}  # noqa: C416 - dict() would keep the narrower type
