"""Where events go: the log and Redis. Each takes one event at a time and never stops a training."""

import json
import time
from collections import deque
from typing import Final, Protocol

import structlog
from pydantic import JsonValue
from redis.exceptions import RedisError

from worker.broker.fencing import Entry, Fence
from worker.broker.retry import spoiled, trouble
from worker.events.counters import counted
from worker.events.spool import Spool, Spooled
from worker.events.state import STATUS, folded, latest
from worker.wire import LIFECYCLE, AnyEvent, JobFailed, JobState, JobWarning, TrainResult, flatten

RETRY_EVERY: Final = 1.0
"""Seconds between two tries while Redis is away."""
LARGEST_META: Final = 16 * 1024
"""Characters of `job.meta`, as JSON, that are kept beside the figures of this attempt; a larger one is dropped, because
RQ's `meta` is one field and is written whole with every event."""
MOST_PENDING: Final = 2_000
"""Events that wait in memory while Redis is away; those beyond them are read from the spool again."""
BATCH: Final = 200
"""Events published at once."""


class Sink(Protocol):
    """Something that takes events."""

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:
        """Take one event; `result` comes with the one that ends a finished job."""
        ...


class LogSink:
    """Writes each event as one log line."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self._log = structlog.get_logger("preflight").bind(job_id=job_id, attempt=attempt)

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:  # noqa: ARG002 - it is in the event
        """Log the event under its type."""
        fields = event.model_dump(exclude={"v", "job_id", "attempt", "ts", "type"})
        if isinstance(event, JobFailed):
            # `message` is the name of the record itself.
            self._log.error(event.type, **{("detail" if k == "message" else k): v for k, v in fields.items()})
        elif isinstance(event, JobWarning):
            self._log.warning(event.message, seq=event.seq)
        else:
            fields["detail"] = fields.pop("message", None)
            self._log.info(event.type, **{name: value for name, value in fields.items() if name != "detail" or value})


class RedisSink:
    """Publishes events through the fence of the attempt, each exactly once and in order.

    While Redis takes none they wait here and in the spool; a training does not. When Redis comes back without
    events that it had taken, everything that the spool holds is published again.
    """

    def __init__(self, fence: Fence, spool: Spool, rq_job_key: str, *, kept: int, meta: dict[str, JsonValue]) -> None:
        """Publish through `fence`; what earlier attempts left in `spool` goes first.

        Args:
            fence: of the attempt that speaks.
            spool: of the same attempt.
            rq_job_key: RQ's hash of the job.
            kept: newest records kept in the event stream, roughly.
            meta: RQ's `job.meta` as it is; kept up to date from now on, for tools that know RQ only. One that is
                larger than `LARGEST_META` is begun anew.
        """
        self._fence = fence
        self._spool = spool
        self._rq_job_key = rq_job_key
        self._kept = kept
        fits = len(json.dumps(meta)) <= LARGEST_META
        self._meta = dict(meta) if fits else {}
        self._pending = deque(spool.replay())
        self._overflown = False
        self._taken: dict[int, int] = {}
        """Attempt -> seq of its last event that Redis has."""
        self._began: dict[int, float] = {}
        """Attempt -> when it did, seconds since the epoch."""
        self._retry_at = 0.0
        self._log = structlog.get_logger("preflight")
        if not fits:
            self._log.warning("meta_dropped", detail=f"the job's meta has more than {LARGEST_META} characters as JSON")

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:
        """Publish the event, or keep it until Redis is back; raises `Superseded`."""
        spooled = Spooled(event, result)
        self._spool.append(spooled)
        self._pending.append(spooled)
        if len(self._pending) > MOST_PENDING:
            self._pending.clear()
            self._overflown = True
        self.pump()

    def pump(self) -> bool:
        """Publish what is pending, as far as Redis takes it now; returns whether nothing is left.

        Raises:
            Superseded: a newer attempt has taken over.
            redis.exceptions.ResponseError: a key of the job is not what it should be.
        """
        more = False
        while (self._pending or self._overflown) and time.monotonic() >= self._retry_at:
            # Before the whole spool is read again it is asked whether Redis takes anything at all.
            size = 0 if self._overflown else min(BATCH, len(self._pending))
            batch = [self._pending[number] for number in range(size)]
            try:
                if more:
                    self._fence.beat(further=False)  # so many events take longer than a lease may
                taken = self._fence.publish(
                    [self._entry(spooled) for spooled in batch], self._rq_job_key, before=self._taken, kept=self._kept
                )
            except RedisError as error:  # away, full, loading or read-only: all may pass
                if spoiled(error):
                    raise
                self._retry_at = time.monotonic() + RETRY_EVERY
                self._log.warning("redis_does_not_take_events", pending=len(self._pending), detail=trouble(error))
                break
            if taken is None:
                self._log.warning("redis_lost_its_data", detail="publishing again what the spool holds")
            if taken is None or self._overflown:
                self._rewind()
                continue
            for one in batch:
                self._taken[one.event.attempt] = one.event.seq
                self._pending.popleft()
            more = True
        return not (self._pending or self._overflown)

    def confirmed(self) -> bool:
        """Whether Redis has every event that it had taken; where it has not, they are pending again.

        Raises:
            Superseded: a newer attempt has taken over.
            redis.exceptions.RedisError: Redis did not answer.
        """
        if self._fence.publish([], self._rq_job_key, before=self._taken, kept=self._kept) is not None:
            return True
        self._log.warning("redis_lost_its_data", detail="publishing again what the spool holds")
        self._rewind()
        return False

    def _rewind(self) -> None:
        # A full disk keeps no copy; what still waits in memory is not lost for that, and keeps its place.
        known = {(one.event.attempt, one.event.seq): one for one in (*self._pending, *self._spool.replay())}
        self._pending = deque(known[key] for key in sorted(known))
        self._taken = {}
        self._overflown = False

    def _entry(self, spooled: Spooled) -> Entry:
        event, record = spooled.event, flatten(spooled.event)
        if event.type == "job_started":
            self._began[event.attempt] = event.ts
        fields = event.model_dump(mode="json", exclude={"v", "seq", "job_id", "ts", "type"}, exclude_none=True)
        if event.type == "job_started":  # nothing of an earlier attempt shall look like this one's
            self._meta = {name: value for name, value in self._meta.items() if name not in JobState.model_fields}
        self._meta.update(latest(event, fields))
        if event.type in STATUS:
            self._meta["status"] = STATUS[event.type]
        return Entry(
            attempt=event.attempt,
            seq=event.seq,
            fields=_in_turn(record),
            state=_in_turn(folded(event, record)),
            lifecycle=event.type in LIFECYCLE,
            first=event.type == "job_started",
            failure=event.model_dump_json() if event.type == "job_failed" else None,
            result=None if spooled.result is None else spooled.result.model_dump_json(),
            meta=json.dumps(self._meta),
            totals=counted(event, self._began.get(event.attempt)),
        )


def _in_turn(record: dict[str, str]) -> list[str]:
    return [part for pair in record.items() for part in pair]
