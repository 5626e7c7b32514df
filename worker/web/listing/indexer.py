"""Keeps the index: a thread that compares it with RQ's registries while somebody asks."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Condition as Signal
from threading import Thread
from typing import Final

from redis.exceptions import RedisError
from rq import Queue

from preflight.client.job_ids import find_job_ids
from preflight.client.job_state import read_jobs, with_requests
from preflight.client.notes import read_notes
from preflight.client.results import PAGE_SIZE
from preflight.wire import is_job_id
from worker.state.supervision import Supervisor
from worker.web.listing.fields import NO_NOTES, OWN_FIELDS, index_row
from worker.web.listing.snapshot import MAX_JOBS, Registry, ended_registries, read_snapshot, read_whole
from worker.web.listing.table import JobTable

FRESH_SECONDS: Final = 0.5
"""Greatest age, in seconds, of an index that answers without being compared again."""
MAX_WAIT: Final = 1.0
"""Seconds from its beginning for which questions wait for a comparison; the first one of many jobs takes longer."""
CLOSING_SECONDS: Final = 1.0
READ_AGAIN: Final = 50
"""Jobs that each comparison reads again, in turn, should a hash have changed without its registry."""


@dataclass(frozen=True, slots=True)
class Indexed:
    """State of the index."""

    complete: bool
    """Whether every job of the registries has been read; false at first."""
    counts: Mapping[str, int]
    """Status -> number of jobs."""
    positions: Mapping[str, int]
    """RQ's id of a job in the queue -> number of jobs before it."""


class Indexer:
    """Index of the jobs of one queue. RQ's registries are the truth, and are read; nothing is written to Redis."""

    def __init__(self, queue: Queue) -> None:
        self.table = JobTable()
        self._queue = queue
        self._signal = Signal()
        self._active: dict[str, Sequence[str]] = {}
        self._state = Indexed(complete=False, counts={}, positions={})
        self._rounds = 0
        self._asked = 0
        """Number of the round that somebody waits for."""
        self._at = -FRESH_SECONDS
        self._began = 0.0
        """Monotonic time at which the comparison under way began; 0: there is none."""
        self._row = 0
        self._error: RedisError | None = None
        self._is_closed = False
        self._thread: Thread | None = None

    def start(self, supervisor: Supervisor) -> None:
        """Start the thread, which rests until somebody asks; `supervisor` starts it again should it end."""
        self._thread = supervisor.start_thread("indexer", self._run)

    def close(self) -> None:
        """End the thread."""
        with self._signal:
            self._is_closed = True
            self._signal.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSING_SECONDS)

    def refresh(self) -> Indexed:
        """Have the index compared with the registries, unless that was just done, and return its state.

        Raises:
            redis.exceptions.RedisError: Redis did not answer.
        """
        with self._signal:
            if time.monotonic() - self._at > FRESH_SECONDS:
                wanted = self._asked = self._rounds + 1
                self._signal.notify_all()
                left = MAX_WAIT - (time.monotonic() - self._began if self._began else 0)
                self._signal.wait_for(lambda: self._rounds >= wanted or self._is_closed, max(0, left))
            if self._error is not None:
                raise self._error
            return self._state

    def _run(self) -> None:
        while True:
            with self._signal:
                self._signal.wait_for(lambda: self._asked > self._rounds or self._is_closed)
                if self._is_closed:
                    return
                self._began = time.monotonic()
            error: RedisError | None = None
            is_whole = False
            try:
                self._compare()
                is_whole = True
            except RedisError as problem:
                error, is_whole = problem, self._state.complete
            finally:  # an exception of another kind ends this thread, and an answer meanwhile is not complete
                with self._signal:
                    self._state = replace(self._state, complete=is_whole)
                    self._error, self._at, self._began = error, time.monotonic(), 0.0
                    self._rounds += 1
                    self._signal.notify_all()

    def _compare(self) -> None:
        registries = ended_registries(self._queue)
        newest = {registry.name: self.table.newest(registry.name) for registry in registries}
        snapshot = read_snapshot(self._queue, registries, newest)
        for source, rq_ids in snapshot.active.items():
            before, now = self._active.get(source, ()), set(rq_ids)
            self.table.add(source, [(rq_id, 0.0) for rq_id in now.difference(before)])
            self.table.remove(source, {*before} - now)
            self._active[source] = rq_ids
        for registry in registries:
            name = registry.name
            self.table.remove(name, self.table.ids(name, below=registry.expired_below))
            self.table.add(name, snapshot.new[name])
            self.table.remove(name, self.table.oldest(name, self.table.count(name) - MAX_JOBS))
            if self.table.count(name) != min(snapshot.counts[name], MAX_JOBS):
                self._replace(registry)
        self.table.read_again(snapshot.active["running"])
        self._row = self.table.read_next_again(self._row, READ_AGAIN)
        positions = {rq_id: before for before, rq_id in enumerate(snapshot.active["queue"])}
        self._read(positions)
        self._state = Indexed(complete=True, counts=self.table.counts(), positions=positions)

    def _replace(self, registry: Registry) -> None:
        """Compare a whole registry: entries were removed, or have different times to live."""
        entries = read_whole(self._queue.connection, registry)
        self.table.remove(registry.name, self.table.ids(registry.name).difference(rq_id for rq_id, _ in entries))
        self.table.add(registry.name, entries)

    def _read(self, positions: Mapping[str, int]) -> None:
        """Read the jobs of new and changed members."""
        while members := self.table.unread(PAGE_SIZE):
            job_ids = find_job_ids(self._queue.connection, [rq_id for rq_id in members if is_job_id(rq_id)])
            by_job = {job_id: rq_id for rq_id, job_id in job_ids.items()}
            records = with_requests(self._queue.connection, read_jobs(self._queue.connection, by_job, OWN_FIELDS))
            notes = read_notes(self._queue.connection, [record.job_id for record in records])
            rows = [
                index_row(record, by_job[record.job_id], notes.get(record.job_id, NO_NOTES))
                for record in records if record.status != "unknown"
            ]  # fmt: skip
            self.table.put({rq_id: job_ids.get(rq_id, rq_id) for rq_id in members}, rows)
            if self._is_closed:
                return
            if not self._state.complete:
                self._state = Indexed(complete=False, counts=self.table.counts(), positions=positions)
