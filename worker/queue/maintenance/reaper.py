"""Reaper: finds jobs whose worker died and requeues them at the front.

A lease changes its value at each renewal. The reaper compares values by its own monotonic clock: clock steps and
different clocks do not matter. RQ's own expiry times take more than a minute and fail jobs without retries.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue
from rq.exceptions import NoSuchJobError

from preflight.errors import InvalidConfig
from preflight.queue.ids import resolve_job_id
from preflight.queue.payload import PoisonMessage
from preflight.queue.untrusted_job import fetch_job
from preflight.redis import keys
from preflight.redis.replies import text
from preflight.redis.retry import is_wrong_type
from preflight.redis.untrusted.reads import read_fields
from worker.admission.quarantine import read_taken
from worker.broker.requeue import MAX_LEASE_BYTES, RqJobRef, read_lease, reclaim

CHECK_INTERVAL: Final = 2.0
"""Seconds between two checks of an idle worker."""
LEASE_TIMEOUT: Final = 12.0
"""Seconds without a renewal after which an attempt counts as dead."""
CLAIM_TIMEOUT: Final = 5.0
"""Seconds without a lease after which a job that was taken counts as lost."""
MAX_CHECK_SECONDS: Final = 2.0
"""Longest check, in seconds: garbage in the registry must not keep this worker from the next job."""
MAX_CHECK_GAP: Final = 3 * CHECK_INTERVAL
"""Seconds between two checks after which earlier observations are dropped: this process was suspended."""


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """A lease, and the monotonic time since which it has not changed."""

    lease: str
    since: float


class Reaper:
    """Observes the leases of all jobs that were taken from a queue."""

    def __init__(self, connection: Redis, queue: Queue, on_poison: Callable[[PoisonMessage], None]) -> None:
        """Observe jobs of `queue`; `on_poison` removes entries that cannot be jobs."""
        self._connection = connection
        self._queue = queue
        self._on_poison = on_poison
        self._observed: dict[tuple[bytes, str], LeaseObservation] = {}
        self._checked = 0.0

    def due(self) -> bool:
        """Whether it is time for another check."""
        return time.monotonic() - self._checked >= CHECK_INTERVAL

    def check(self, dead_workers: frozenset[str] = frozenset(), *, own: str | None = None) -> None:
        """Reclaim jobs whose lease has not changed for too long, and at once those of `dead_workers`.

        `own` is the job that this worker runs, by RQ's id: other workers judge it.

        Raises:
            redis.exceptions.RedisError: Redis does not answer; earlier observations are dropped.
        """
        if time.monotonic() - self._checked > MAX_CHECK_GAP:
            self._observed.clear()
        self._checked = time.monotonic()
        try:
            if dead_workers:  # RQ's records would show them as busy for almost two minutes
                self._connection.delete(*map(keys.rq_worker, dead_workers))
            taken = [key for key in self._taken() if own is None or key[0] != own.encode()]
            self._observed = self._observe_all(taken, dead_workers)
        except RedisError:
            self._observed.clear()
            raise

    def _observe_all(
        self, taken: Sequence[tuple[bytes, str]], dead_workers: frozenset[str]
    ) -> dict[tuple[bytes, str], LeaseObservation]:
        """Observe jobs for `MAX_CHECK_SECONDS`, new ones first; the others keep their earlier observations.

        The last that was taken comes first: dead ones go to the front of the queue one by one.
        """
        found: dict[tuple[bytes, str], LeaseObservation] = {}
        deadline = time.monotonic() + MAX_CHECK_SECONDS
        newest_first = taken[::-1]
        for key in sorted(newest_first, key=self._was_observed):
            if time.monotonic() < deadline:
                found[key] = self._observe(*key, dead_workers)
            elif key in self._observed:
                found[key] = self._observed[key]
        return found

    def _was_observed(self, key: tuple[bytes, str]) -> bool:
        return key in self._observed

    def _taken(self) -> list[tuple[bytes, str]]:
        """Return (job id, execution id or '') of all jobs that were taken from the queue and have not ended."""
        entries, between = read_taken(self._connection, self._queue)
        started = [
            (job_id, execution.decode(errors="surrogateescape"))
            for entry in entries
            for job_id, _, execution in [entry.partition(b":")]
        ]
        known = {job_id for job_id, _ in started}
        return started + [(job_id, "") for job_id in dict.fromkeys(between) if job_id not in known]

    def _observe(self, raw_id: bytes, execution: str, dead_workers: frozenset[str]) -> LeaseObservation:
        rq_id = raw_id.decode(errors="replace")
        ref = RqJobRef(self._queue, rq_id, execution)
        try:
            job_id = resolve_job_id(fetch_job(raw_id, self._connection).args, rq_id)
        except PoisonMessage as poison:
            self._on_poison(poison)
            return LeaseObservation("", time.monotonic())
        except (NoSuchJobError, InvalidConfig):
            job_id = rq_id  # nothing to run; reclaiming clears its records
        try:
            return self._reclaim_if_dead(raw_id, job_id, ref, dead_workers)
        except RedisError as error:
            if not is_wrong_type(error):
                raise
            self._on_poison(PoisonMessage(f"a key of job {job_id} in Redis has a wrong type or value ({error})", rq_id))
            return LeaseObservation("", time.monotonic())

    def _reclaim_if_dead(
        self, raw_id: bytes, job_id: str, ref: RqJobRef, dead_workers: frozenset[str]
    ) -> LeaseObservation:
        """Observe the lease of a job, and reclaim the job if its attempt is dead."""
        lease = read_lease(self._connection, job_id)
        before = self._observed.get((raw_id, ref.execution))
        # An expired lease is no renewal: the observation before it still counts.
        still = before is not None and (before.lease == lease or not lease)
        seen = before if before is not None and still else LeaseObservation(lease, time.monotonic())
        timeout = LEASE_TIMEOUT if seen.lease else CLAIM_TIMEOUT
        if self._died(ref, lease, dead_workers) or time.monotonic() - seen.since >= timeout:
            queued = reclaim(self._connection, job_id, ref, lease=lease, worker_died=True)
            structlog.get_logger("preflight").warning(
                "job_reclaimed", job_id=job_id, waits_in_queue=queued, message="the job of a dead worker was reclaimed"
            )
        return seen

    def _died(self, ref: RqJobRef, lease: str, dead_workers: frozenset[str]) -> bool:
        """Whether an execution belongs to a dead worker, and no other worker holds the lease."""
        if not ref.execution or not dead_workers:
            return False
        key = keys.rq_execution(ref.rq_id, ref.execution).encode(errors="surrogateescape")
        (raw,) = read_fields(self._connection, key, ["worker_name"], MAX_LEASE_BYTES)
        name = text(raw or b"")
        return name in dead_workers and (not lease or lease.startswith(f"{name}/"))
