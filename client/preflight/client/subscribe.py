"""Subscribe to a job's events by polling its stream."""

import time
from collections.abc import Callable, Iterator
from typing import Final

from pydantic import ValidationError
from redis import Redis
from redis.exceptions import ConnectionError, RedisError, TimeoutError
from rq import Queue

from preflight.client.job_ids import resolve
from preflight.client.job_state import read_job
from preflight.client.results import IDLE_SECONDS, MAX_EVENT_FIELDS, PAGE_SIZE, Silence
from preflight.redis import keys
from preflight.redis.replies import text, texts
from preflight.redis.retry import PERMANENT_ERRORS, condition, is_wrong_type
from preflight.redis.untrusted.bounded_replies import OversizedReply
from preflight.wire import TERMINAL_EVENTS, AnyEvent, follows_end, unflatten

POLL_INTERVAL: Final = 0.1
"""Seconds between two reads of the stream."""


def subscribe(
    redis: Redis, queue: Queue, job_id: str, *, after: str, timeout: float | None, resubmit: Callable[[], bool]
) -> Iterator[AnyEvent | Silence]:
    """Yield events as `Client.follow` does; `resubmit` enqueues a job that Redis lost, and returns whether it did."""
    last_event_at, over, rq_id = time.monotonic(), False, job_id
    newest: dict[int, AnyEvent] = {}
    last: AnyEvent | None = None  # apart from those of the extras, which may follow the end
    while timeout is None or time.monotonic() - last_event_at < timeout:
        try:
            records = _read_records(redis, job_id, after)
            if not records and not newest:  # RQ's id leads to the job once a worker has taken it
                job_id = resolve(redis, job_id)
            # A job that was killed or has expired publishes no terminal event.
            ended = last is not None and last.type in TERMINAL_EVENTS
            idle = ended or time.monotonic() - last_event_at > IDLE_SECONDS
            if idle and not records and not resubmit():
                record = read_job(redis, job_id, queue, rq_id)
                over = not record.is_active and record.job_id == job_id
                job_id, rq_id = record.job_id, record.rq_id
            if over:  # its last events may have come between the two reads
                records = _read_records(redis, job_id, after)
        except PERMANENT_ERRORS:
            raise
        except (ConnectionError, TimeoutError) as error:
            yield Silence(condition(error))
            time.sleep(POLL_INTERVAL)
            continue
        for record_id, fields in records:
            after, last_event_at = record_id, time.monotonic()
            event = _decode(fields)
            if event is not None and not _is_repeated(event, newest.get(event.attempt)):
                newest[event.attempt] = event
                last = last if follows_end(event, last) else event
                yield event
        if over:
            return
        if not records:
            yield Silence()
            time.sleep(POLL_INTERVAL)


def read_lifecycle_events(redis: Redis, job_id: str) -> list[AnyEvent]:
    """Return the events of the stream that is never trimmed, oldest first; none where it cannot be read."""
    try:
        records = redis.xrange(keys.lifecycle(job_id), count=PAGE_SIZE) or []
    except RedisError as error:
        if not (is_wrong_type(error) or isinstance(error, OversizedReply)):
            raise
        return []
    return [event for _, fields in records if (event := _decode(texts(fields or {}))) is not None]


def _read_records(redis: Redis, job_id: str, after: str) -> list[tuple[str, dict[str, str]]]:
    """Return the stream records after the id `after`."""
    records = redis.xrange(keys.events(job_id), min=f"({after}", count=PAGE_SIZE) or []
    return [(text(record_id), texts(fields or {})) for record_id, fields in records]


def _decode(fields: dict[str, str]) -> AnyEvent | None:
    """Return the event in a stream record; None for an unknown type or version."""
    if len(fields) > MAX_EVENT_FIELDS:
        return None
    try:
        return unflatten(fields)
    except ValidationError:
        return None


def _is_repeated(event: AnyEvent, newest: AnyEvent | None) -> bool:
    """Whether an event was published again, after Redis lost its data."""
    return newest is not None and 0 < event.seq <= newest.seq and event.ts <= newest.ts
