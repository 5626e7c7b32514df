"""The sink that publishes events to Redis, with a spool on disk for the time that Redis is unavailable."""

import json
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

import structlog
from pydantic import JsonValue
from redis.exceptions import RedisError

from preflight.events.record import EventRecord
from preflight.events.state import event_record, latest_fields
from preflight.redis.retry import REDIS, is_wrong_type
from preflight.wire import STATUS_BY_EVENT, AnyEvent, JobState, TrainResult
from worker.broker.fencing import Fence
from worker.state.spool import Spool, SpooledEvent

RETRY_INTERVAL: Final = 1.0
"""Seconds between two tries while Redis is unavailable."""
MAX_PENDING: Final = 2_000
"""Events kept in memory while Redis is unavailable; where there are more, all are read from the spool again."""
BATCH_SIZE: Final = 200
"""Maximum number of events in one call of Redis."""
MAX_META_LENGTH: Final = 16 * 1024
"""Characters of the producer's `meta` as JSON; RQ's `meta` is one field, rewritten with every event."""


class RqMeta:
    """`job.meta` of an attempt."""

    def __init__(self, meta: Mapping[str, JsonValue]) -> None:
        """Start with the producer's `meta`; one longer than `MAX_META_LENGTH` is dropped."""
        fits = len(json.dumps(meta)) <= MAX_META_LENGTH
        self._meta = dict(meta) if fits else {}
        if not fits:
            structlog.get_logger("preflight").warning(
                "meta_dropped", message=f"the job's meta has more than {MAX_META_LENGTH} characters as JSON"
            )

    def update(self, event: AnyEvent) -> str:
        """Add an event; returns `meta` as JSON."""
        fields = event.model_dump(mode="json", exclude={"v", "seq", "job_id", "ts", "type"}, exclude_none=True)
        if event.type == "job_started":  # drop the values of earlier attempts
            self._meta = {name: value for name, value in self._meta.items() if name not in JobState.model_fields}
        self._meta.update(latest_fields(event, fields))
        if event.type in STATUS_BY_EVENT:
            self._meta["status"] = STATUS_BY_EVENT[event.type]
        return json.dumps(self._meta)


class RedisSink:
    """Publishes events through the attempt's fence, each exactly once and in order.

    Where Redis loses events, all that the spool has are published again.
    """

    def __init__(self, fence: Fence, spool: Spool, *, kept: int, meta: Mapping[str, JsonValue]) -> None:
        """Publish through the attempt's `fence`, first the events that earlier attempts left in `spool`.

        `meta` is RQ's, of the job; `kept` the approximate length of the event stream.
        """
        self._fence = fence
        self._spool = spool
        self._kept = kept
        self._meta = RqMeta(meta)
        self._pending = deque(spool.replay())
        self._overflowed = False
        self._published: dict[int, int] = {}
        """Attempt -> seq of its last published event."""
        self._started_at: dict[int, float] = {}
        """Attempt -> its start, seconds since the epoch."""
        self._retry_at = 0.0
        self._log = structlog.get_logger("preflight")
        REDIS.backlog = self._count_pending

    def emit(self, event: AnyEvent, result: TrainResult | None = None) -> None:
        """Publish the event, or keep it until Redis is available; raises `Superseded`."""
        spooled = SpooledEvent(event, result)
        self._spool.append(spooled)
        self._pending.append(spooled)
        if len(self._pending) > MAX_PENDING:
            self._pending.clear()
            self._overflowed = True
        self.publish_pending()

    def publish_pending(self) -> bool:
        """Publish pending events until Redis refuses; returns whether none is left.

        Raises:
            Superseded: a newer attempt has taken over.
            redis.exceptions.ResponseError: a key of the job has another type.
        """
        batches = 0
        while (self._pending or self._overflowed) and time.monotonic() >= self._retry_at:
            REDIS.note_backlog()
            # An empty batch checks that Redis is available before the whole spool is read.
            size = 0 if self._overflowed else min(BATCH_SIZE, len(self._pending))
            batch = [self._pending[number] for number in range(size)]
            try:
                if batches:
                    self._fence.renew_lease(progressed=False)  # many batches may outlast the lease
                published = self._publish(batch)
            except RedisError as error:  # unavailable, full, loading or read-only
                if is_wrong_type(error):
                    raise
                self._retry_at = time.monotonic() + RETRY_INTERVAL
                REDIS.note_failure(error, "publish events")
                break
            if not published or self._overflowed:
                self._reload()
                continue
            for one in batch:
                self._published[one.event.attempt] = one.event.seq
                self._pending.popleft()
            batches += 1
            REDIS.note_answer()
        return not (self._pending or self._overflowed)

    def _count_pending(self) -> int:
        return len(self._pending)

    def flush(self, seconds: float) -> None:
        """Publish what Redis takes within `seconds`; the rest stays in the spool. Raises as `publish_pending`."""
        deadline = time.monotonic() + seconds
        while not self.publish_pending() and time.monotonic() < deadline:
            time.sleep(0.05)

    def verify_published(self) -> bool:
        """Whether Redis still has all published events; where not, they are pending again.

        Raises:
            Superseded: a newer attempt has taken over.
            redis.exceptions.RedisError: Redis did not answer.
        """
        if self._publish([]):
            return True
        self._reload()
        return False

    def _publish(self, batch: list[SpooledEvent]) -> bool:
        """Publish a batch, unless Redis has lost events published before it."""
        records = [self._record(spooled) for spooled in batch]
        added = self._fence.publish(records, before=self._published, kept=self._kept)
        if added is None:
            self._log.warning(
                "redis_data_loss_detected", message="Redis lost events; those of the spool are published again"
            )
        return added is not None

    def _reload(self) -> None:
        """Make all events pending again: those of the spool, and those in memory, which a full disk did not keep."""
        known = {(one.event.attempt, one.event.seq): one for one in (*self._pending, *self._spool.replay())}
        self._pending = deque(known[key] for key in sorted(known))
        self._published = {}
        self._overflowed = False

    def _record(self, spooled: SpooledEvent) -> EventRecord:
        event = spooled.event
        if event.type == "job_started":
            self._started_at[event.attempt] = event.ts
        began = self._started_at.get(event.attempt)
        return event_record(event, began=began, result=spooled.result, meta=self._meta.update(event))
