"""Registry cleaner: removes expired jobs and killed workers from RQ's registries.

RQ's own methods also fail, move and enqueue jobs and run callbacks. This one removes entries and sets times to live, a
page at a time, so that neither worker nor Redis is blocked.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from pydantic import TypeAdapter
from redis import Redis
from redis.exceptions import ResponseError
from rq import Queue, Worker
from rq.exceptions import NoSuchJobError
from rq.worker_registration import WORKERS_BY_QUEUE_KEY

from preflight.queue.payload import PoisonMessage
from preflight.queue.untrusted_job import fetch_job
from preflight.redis import keys
from preflight.redis.lua import TEXT, run_script
from preflight.redis.retry import describe_error
from preflight.redis.untrusted.reads import read_page
from preflight.wire import FUNCTION

CLEANING_INTERVAL: Final = 600.0
"""Seconds between two rounds, of all workers of a queue together; as RQ's `maintenance_interval`."""
PAGE: Final = 250
"""Entries in one step, which takes a few milliseconds."""
MAX_ENTRY_BYTES: Final = 1024
"""Largest id in a registry, or name of a worker, in bytes; longer ones are dropped."""
MAX_FETCHED: Final = 20
"""Canceled jobs read in one step."""

IDS = TypeAdapter(list[bytes])
TURN = TypeAdapter(bool)


@dataclass(frozen=True, slots=True)
class Scan:
    """Cleaning of one registry in steps."""

    key: str
    step: Callable[[int], int]
    """Takes and returns a cursor of Redis, 0 at first and after the last step."""


class RegistryCleaner:
    """Cleans the registries of one queue; its workers take turns."""

    def __init__(self, connection: Redis, queue: Queue, worker: str, *, ttl: int) -> None:
        """Clean the registries of `queue` in the name of `worker`.

        `ttl` is set, in seconds, on keys without a time to live whose job is gone.
        """
        self._connection = connection
        self._queue = queue
        self._worker = worker
        self._ttl = ttl
        self._scans: deque[Scan] = deque()
        self._cursor = 0
        self._next_round = 0.0
        self._logged: set[str] = set()

    def due(self) -> bool:
        """Whether there is something to do."""
        return bool(self._scans) or time.monotonic() >= self._next_round

    def step(self) -> None:
        """Work for a few milliseconds; an error of one registry skips it until the next round.

        Raises:
            redis.exceptions.RedisError: Redis does not answer; the step may be repeated.
        """
        if not self._scans:
            self._begin()
        if not self._scans:
            return
        scan = self._scans[0]
        try:
            self._cursor = scan.step(self._cursor)
        except ResponseError as error:
            self._log_once(scan.key, error)
            self._cursor = 0
        if self._cursor == 0:
            self._scans.popleft()

    def _begin(self) -> None:
        """Begin a round if it is this worker's turn."""
        key = keys.maintenance(self._queue.name)
        try:
            turn = run_script(
                self._connection, "maintenance/take_turn", TURN, keys=[key],
                args=[self._worker, int(1000 * CLEANING_INTERVAL)],
            )  # fmt: skip
            if turn:
                self._scans.extend(self._round())
        except ResponseError as error:
            self._log_once(key, error)
        self._next_round = time.monotonic() + CLEANING_INTERVAL

    def _round(self) -> list[Scan]:
        """Return the scans of one round; the registry of started jobs is the reaper's."""
        queue = self._queue
        scored_by_expiry = (queue.finished_job_registry.key, queue.failed_job_registry.key)
        others = (queue.deferred_job_registry.key, queue.scheduled_job_registry.key)
        canceled, workers = queue.canceled_job_registry.key, WORKERS_BY_QUEUE_KEY % queue.name
        return [
            *(Scan(key, partial(self._clean, key, expires=True)) for key in scored_by_expiry),
            *(Scan(key, partial(self._clean, key, expires=False)) for key in others),
            Scan(canceled, partial(self._clean_canceled, canceled)),
            Scan(workers, partial(self._clean_workers, workers)),
        ]

    def _clean(self, registry: str, cursor: int, *, expires: bool) -> int:
        """Clean a page of a registry; returns the next cursor."""
        return self._sweep(registry, cursor, expires=expires)[0]

    def _clean_canceled(self, registry: str, cursor: int) -> int:
        """Clean a page of the canceled jobs; those that RQ keeps for ever get a time to live."""
        following, kept = self._sweep(registry, cursor, expires=False)
        for job_id in kept[:MAX_FETCHED]:
            try:
                job = fetch_job(job_id, self._connection)
            except (NoSuchJobError, PoisonMessage):
                continue
            if job.func_name == FUNCTION:  # jobs of other services are left alone
                name = "maintenance/expire_canceled"
                run_script(self._connection, name, TEXT, keys=[keys.rq_job(job.id)], args=[self._ttl])
        return following

    def _sweep(self, registry: str, cursor: int, *, expires: bool) -> tuple[int, list[bytes]]:
        """Clean a page of a registry; returns the next cursor, and the entries of jobs without a time to live."""
        page = read_page(self._connection, registry, cursor, PAGE, name_bytes=MAX_ENTRY_BYTES)
        following, ids = page.cursor, page.names
        if not ids:
            return following, []
        kept = run_script(
            self._connection, "maintenance/sweep", IDS,
            keys=[registry, *(key for job_id in ids for key in _keys_of(job_id))],
            args=[int(expires), self._ttl, *ids],
        )  # fmt: skip
        return following, kept

    def _clean_workers(self, registry: str, cursor: int) -> int:
        """Clean a page of the queue's workers; returns the next cursor."""
        page = read_page(self._connection, registry, cursor, PAGE, name_bytes=MAX_ENTRY_BYTES)
        following, members = page.cursor, page.names
        prefix = keys.rq_worker("").encode()
        workers = [member for member in members if member.startswith(prefix)]
        others = [member for member in members if not member.startswith(prefix)]
        run_script(
            self._connection, "maintenance/sweep_workers", TEXT,
            keys=[registry, Worker.redis_workers_keys, *workers], args=others,
        )  # fmt: skip
        return following

    def _log_once(self, key: str, error: ResponseError) -> None:
        """Log once that a key cannot be cleaned."""
        if key not in self._logged:
            self._logged.add(key)
            structlog.get_logger("preflight").warning(
                "registry_not_maintained", key=key, message=f"a registry is not cleaned: {describe_error(error)}"
            )


def _keys_of(raw_id: bytes) -> tuple[bytes, ...]:
    """Return RQ's hash of a job, RQ's results of it, and its cancel key."""
    job_id = raw_id.decode(errors="surrogateescape")
    names = (keys.rq_job(job_id), keys.rq_results(job_id), keys.cancel(job_id))
    return tuple(name.encode(errors="surrogateescape") for name in names)
