"""Subscription: a watched job and the newest records of its stream."""

import asyncio
import time
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from preflight.client.results import IDLE_SECONDS
from worker.web.streams.stream_record import RawRecords, RecordId, StreamRecord, parse_id, parse_records

MAX_TAIL_BYTES: Final = 32 * 1024
"""Newest records of a job that are kept: a viewer that keeps up is served from them."""
END_CHECK_INTERVAL: Final = 0.3
"""Seconds between two checks whether a job has ended."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Events that a viewer is sent at once, and the id of the last record among them."""

    last: RecordId
    text: bytes


@dataclass(slots=True)
class Subscription:
    """A job that at least one viewer watches, and the tail of its stream."""

    job_id: str
    last_read: RecordId
    start: RecordId
    """Every event after it is in `tail`."""
    has_terminal_event: bool
    """Whether the newest event ends an attempt."""
    tail: list[StreamRecord] = field(default_factory=list)
    check_at: float = 0.0
    """When to check again whether the job is active."""
    may_have_ended: bool = False
    """The job was inactive at the last check, and no record has come since."""
    has_ended: bool = False
    """The job was inactive at two checks in a row: no more events will come."""
    is_unreadable: bool = False
    """Whether its key is no stream any more."""
    viewers: int = 0
    left_at: float = field(default_factory=time.monotonic)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, with every change."""

    def add(self, raw: RawRecords) -> None:
        """Append new records; the oldest beyond `MAX_TAIL_BYTES` are dropped."""
        records = parse_records(raw)
        self.tail += records
        self.last_read = parse_id(raw[-1][0].decode())
        size, kept = 0, len(self.tail)
        while kept and size < MAX_TAIL_BYTES:
            kept -= 1
            size += len(self.tail[kept].text)
        if kept:
            self.start = self.tail[kept - 1].id
            del self.tail[:kept]
        self.has_terminal_event = records[-1].is_terminal if records else self.has_terminal_event
        self.may_have_ended, self.check_at = False, 0.0 if self.has_terminal_event else time.monotonic() + IDLE_SECONDS

    def record_check(self, *, is_active: bool) -> None:
        """Take the result of a check whether the job is active."""
        self.has_ended, self.may_have_ended = self.may_have_ended and not is_active, not is_active
        interval = IDLE_SECONDS if is_active and not self.has_terminal_event else END_CHECK_INTERVAL
        self.check_at = time.monotonic() + interval
        if self.has_ended:
            self.notify()

    def records_after(self, record_id: RecordId) -> Chunk | None:
        """Return the events after `record_id`, which is not before `start`; None where there are none."""
        first = bisect_right(self.tail, record_id, key=lambda record: record.id)
        if first == len(self.tail):
            return None
        return Chunk(self.tail[-1].id, b"".join(record.text for record in self.tail[first:]))

    def notify(self) -> None:
        """Wake every viewer."""
        self.changed.set()
        self.changed = asyncio.Event()
