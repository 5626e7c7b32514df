"""How an event becomes what Redis holds of a job: its streams, its state, their time to live."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from worker.broker import keys
from worker.events.counters import counted
from worker.wire import EVENTS_KEPT, LIFECYCLE, AnyEvent, PlanAdapted, PredictionChecked, TrainingProfile, flatten

if TYPE_CHECKING:
    from redis import Redis
    from redis.typing import EncodableT, FieldT

STATUS: Final = {
    "job_started": "running", "training_done": "finished", "job_failed": "failed", "job_cancelled": "cancelled",
    "job_interrupted": "queued",
}  # fmt: skip
"""Event type -> status that it brings about."""
IN_EVERY_EVENT: Final = ("v", "seq", "job_id", "attempt", "ts", "type")

T = TypeVar("T")


def folded(event: AnyEvent, record: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of the state hash that an event, flattened to `record`, sets."""
    state = {name: value for name, value in latest(event, record).items() if name not in IN_EVERY_EVENT}
    state |= {"updated_at": record["ts"], "attempt": record["attempt"]}
    if event.type == "job_started":
        state["started_at"] = record["ts"]
    if event.type in STATUS:
        state["status"] = STATUS[event.type]
    return state


def latest(event: AnyEvent, fields: Mapping[str, T]) -> dict[str, T]:
    """Return which of an event's `fields` are the latest value of something, under its name."""
    match event:
        case PlanAdapted():
            return {event.field: fields["after"]}
        case PredictionChecked():  # its steps are not those of an epoch, and its cause passes
            return {name: fields[name] for name in ("predicted_batch_s", "measured_batch_s", "deviation")}
        case TrainingProfile():  # its steps are those of this process
            return {name: value for name, value in fields.items() if name.endswith("_s")}
    return dict(fields)


def publish(connection: Redis, event: AnyEvent, *, ttl: int, kept: int = EVENTS_KEPT) -> None:
    """Publish an event of a job that no attempt is running: it was refused, or cancelled in the queue.

    What an attempt says goes through its `worker.broker.fencing.Fence`.

    Args:
        connection: where.
        event: what.
        ttl: seconds for which the job's keys are kept from now on.
        kept: newest records kept in the event stream, roughly.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    job_id, record = event.job_id, flatten(event)
    pipe = connection.pipeline(transaction=True)
    pipe.xadd(keys.events(job_id), _fields(record), maxlen=kept, approximate=True)
    if event.type in LIFECYCLE:
        pipe.xadd(keys.lifecycle(job_id), _fields(record))
    pipe.hset(keys.state(job_id), mapping=_fields(folded(event, record)))
    for name, amount in counted(event, began=None).items():
        pipe.hincrbyfloat(keys.TOTALS, name, amount)
    for key in (keys.events, keys.lifecycle, keys.state):
        pipe.expire(key(job_id), ttl)
    pipe.execute()


def ask_to_stop(connection: Redis, job_id: str, *, ttl: int) -> None:
    """Ask a job to stop; whoever runs it hears so at its next beat.

    Raises:
        redis.exceptions.RedisError: Redis did not take it.
    """
    pipe = connection.pipeline(transaction=True)  # without a time to live it would outlast a job that has just ended
    pipe.hset(keys.cancel(job_id), "at", str(time.time()))
    pipe.expire(keys.cancel(job_id), ttl)
    pipe.execute()


def _fields(record: Mapping[str, str]) -> dict[FieldT, EncodableT]:
    """Return the record in the type that redis-py's invariant dicts ask for."""
    return {name: value for name, value in record.items()}  # noqa: C416 - dict() would keep the narrower type
