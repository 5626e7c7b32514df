"""Finds jobs whose worker died and puts them back to the front of the queue.

An attempt shows that it lives by a lease whose value changes at every beat. Whoever watches compares values on its
own monotonic clock, so that neither clock steps nor clocks that differ matter. RQ's own way, expiry times in its
registry, takes a minute and more and marks jobs without retries failed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from pydantic import TypeAdapter
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.exceptions import NoSuchJobError
from rq.utils import as_text

from training.errors import InvalidConfig
from worker.broker import keys
from worker.broker.fencing import Place, lease_of, take_back
from worker.broker.retry import spoiled
from worker.jobs.heartbeat import effective_id
from worker.queue.untrusted_job import Poison, load

LOOK_EVERY: Final = 2.0
"""Seconds between two looks of an idle worker."""
DEAD_AFTER: Final = 12.0
"""Seconds without a beat after which an attempt is taken for dead."""
UNCLAIMED_AFTER: Final = 5.0
"""Seconds without any lease after which a job that was taken is taken for lost."""
LOST_SIGHT: Final = 3 * LOOK_EVERY
"""Seconds between two looks after which nothing is concluded from the earlier one: this process stood still."""

RAW = TypeAdapter(list[bytes])
"""What a list or sorted set holds; ids in a queue may be any bytes."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Last sign of life of a job, and since when it has not changed."""

    lease: str
    since: float


class Reaper:
    """Watches the jobs that other workers have taken."""

    def __init__(self, connection: Redis, queue: Queue, poisoned: Callable[[Poison], None]) -> None:
        """Watch `queue`; what cannot be a job goes to `poisoned`."""
        self._connection = connection
        self._queue = queue
        self._poisoned = poisoned
        self._seen: dict[tuple[bytes, str], Seen] = {}
        self._looked = 0.0

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() - self._looked >= LOOK_EVERY

    def look(self, dead_workers: frozenset[str] = frozenset()) -> None:
        """Look once, and take back what is dead; at once what belongs to `dead_workers`.

        Raises:
            redis.exceptions.RedisError: Redis does not answer; nothing is concluded from what was seen before.
        """
        if time.monotonic() - self._looked > LOST_SIGHT:
            self._seen.clear()
        self._looked = time.monotonic()
        try:
            taken = self._taken()
            self._seen = {key: self._look_at(*key, dead_workers) for key in taken}
        except RedisError:
            self._seen.clear()
            raise

    def _taken(self) -> list[tuple[bytes, str]]:
        """Return (job id, execution id or '') of everything that was taken from the queue and not settled."""
        started = [
            (job_id, execution.decode(errors="surrogateescape"))
            for entry in RAW.validate_python(self._connection.zrange(self._queue.started_job_registry.key, 0, -1))
            for job_id, _, execution in [entry.partition(b":")]
        ]
        known = {job_id for job_id, _ in started}
        between = dict.fromkeys(RAW.validate_python(self._connection.lrange(self._queue.intermediate_queue_key, 0, -1)))
        return started + [(job_id, "") for job_id in between if job_id not in known]

    def _look_at(self, raw_id: bytes, execution: str, dead_workers: frozenset[str]) -> Seen:
        rq_id = raw_id.decode(errors="replace")
        place = Place(self._queue, rq_id, execution)
        try:
            job_id = effective_id(load(raw_id, self._connection).args, rq_id)
        except Poison as poison:
            self._poisoned(poison)
            return Seen("", time.monotonic())
        except (NoSuchJobError, InvalidConfig):
            job_id = rq_id  # nothing to run; taking it back clears it away
        try:
            return self._watched(raw_id, job_id, place, dead_workers)
        except RedisError as error:
            if not spoiled(error):
                raise
            self._poisoned(Poison(f"a key of job {job_id} in Redis is not what it should be ({error})", rq_id))
            return Seen("", time.monotonic())

    def _watched(self, raw_id: bytes, job_id: str, place: Place, dead_workers: frozenset[str]) -> Seen:
        """Return the last sign of life of a job, which is taken back when that is too long ago."""
        lease = lease_of(self._connection, job_id)
        before = self._seen.get((raw_id, place.execution))
        # A lease that ran out is no sign of life: what was seen before it still counts.
        still = before is not None and (before.lease == lease or not lease)
        seen = before if before is not None and still else Seen(lease, time.monotonic())
        patience = DEAD_AFTER if seen.lease else UNCLAIMED_AFTER
        if self._died(place, lease, dead_workers) or time.monotonic() - seen.since >= patience:
            waits = take_back(self._connection, job_id, place, lease=lease, worker_died=True)
            structlog.get_logger("preflight").warning("job_taken_back", job_id=job_id, waits_in_queue=waits)
        return seen

    def _died(self, place: Place, lease: str, dead_workers: frozenset[str]) -> bool:
        """Whether an execution is known to be dead, and nobody else is running the job."""
        if not place.execution or not dead_workers:
            return False
        key = keys.rq_execution(place.rq_id, place.execution).encode(errors="surrogateescape")
        name = as_text(self._connection.hget(key, "worker_name") or b"")
        return name in dead_workers and (not lease or lease.startswith(f"{name}/"))
