"""Where events go: the log, Redis, RQ's own job.meta. Each takes one event at a time and never stops a training."""

import time
from collections import deque
from typing import Final, Protocol

import structlog
from redis import Redis
from redis.exceptions import RedisError
from rq.job import Job

from worker.publish import STATUS, publish
from worker.wire import AnyEvent, JobFailed, JobWarning

RETRY_EVERY: Final = 1.0
"""Seconds between two tries while Redis is away."""
MOST_PENDING: Final = 10_000
"""Events kept while Redis is away; at two a second more than an hour. Then the oldest are dropped."""


class Sink(Protocol):
    """Something that takes events."""

    def emit(self, event: AnyEvent) -> None:
        """Take one event."""
        ...


class LogSink:
    """Writes each event as one log line."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self._log = structlog.get_logger("preflight").bind(job_id=job_id, attempt=attempt)

    def emit(self, event: AnyEvent) -> None:
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
    """Appends events to the job's streams and keeps its state hash.

    While Redis takes none events wait here, in order; a training does not.
    """

    def __init__(self, connection: Redis, job_id: str, *, ttl: int, kept: int) -> None:
        self._connection = connection
        self._ttl = ttl
        self._kept = kept
        self._pending: deque[AnyEvent] = deque(maxlen=MOST_PENDING)
        self._retry_at = 0.0
        self._log = structlog.get_logger("preflight").bind(job_id=job_id)

    def emit(self, event: AnyEvent) -> None:
        """Publish the event, or keep it until Redis is back."""
        self._pending.append(event)
        self.pump()

    def pump(self) -> None:
        """Publish what is pending, as far as Redis takes it now."""
        while self._pending and time.monotonic() >= self._retry_at:
            try:
                publish(self._connection, self._pending[0], ttl=self._ttl, kept=self._kept)
            except RedisError as error:  # away, full, loading or read-only: all may pass
                self._retry_at = time.monotonic() + RETRY_EVERY
                self._log.warning("redis_does_not_take_events", pending=len(self._pending), error=str(error))
                return
            self._pending.popleft()

    def drain(self, seconds: float) -> bool:
        """Publish what is pending, trying for at most `seconds`; returns whether nothing is left."""
        deadline = time.monotonic() + seconds
        while self._pending and time.monotonic() < deadline:
            self.pump()
            if self._pending:
                time.sleep(0.1)
        return not self._pending


class MetaSink:
    """Keeps RQ's `job.meta` up to date, for tools that know RQ only."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def emit(self, event: AnyEvent) -> None:
        """Put the event's figures into the job's meta."""
        fields = event.model_dump(mode="json", exclude={"v", "seq", "job_id", "ts", "type"}, exclude_none=True)
        if event.type in STATUS:
            fields["status"] = STATUS[event.type]
        self._job.meta.update(fields)
        try:
            self._job.save_meta()
        except RedisError as error:
            structlog.get_logger("preflight").debug("meta_not_saved", error=str(error))
