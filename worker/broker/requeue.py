"""Requeueing: put a job whose attempt has ended, or died, back into its queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter
from redis import Redis
from rq import Queue

from preflight.redis import keys
from preflight.redis.lua import TEXT, run_script
from preflight.redis.replies import text

MAX_LEASE_BYTES: Final = 512
"""Largest lease, in bytes: a worker's name, an execution, a number."""
LEASE = TypeAdapter(bytes)
MAX_SPARED_DEATHS: Final = 10
"""Deaths of whole workers that were short of memory which do not count among a job's deaths."""


@dataclass(frozen=True, slots=True)
class RqJobRef:
    """Reference to RQ's records of a job."""

    queue: Queue
    rq_id: str
    execution: str
    """Id of RQ's execution; empty where there is none."""

    @property
    def job_key(self) -> str:
        """RQ's hash of the job."""
        return keys.rq_job(self.rq_id)


def read_lease(connection: Redis, job_id: str) -> str:
    """Return the lease of a job; empty where there is none."""
    return text(run_script(connection, "fencing/read_lease", LEASE, keys=[keys.lease(job_id)], args=[MAX_LEASE_BYTES]))


def defer(connection: Redis, ref: RqJobRef) -> None:
    """Give up an execution of a job that another attempt is running, and put the job at the end of the queue."""
    queue = ref.queue
    run_script(
        connection, "fencing/defer", TEXT,
        keys=[queue.key, queue.intermediate_queue_key, queue.started_job_registry.key], args=[ref.rq_id, ref.execution],
    )  # fmt: skip


def reclaim(connection: Redis, job_id: str, ref: RqJobRef, *, lease: str, worker_died: bool = False) -> bool:
    """Put a job whose attempt is dead at the front of its queue, unless its lease has changed.

    Where the whole worker died, `worker_died`, short of memory, that does not count as a death of the job. Returns
    whether the job waits in the queue now.
    """
    spared = MAX_SPARED_DEATHS if worker_died else 0
    return requeue(connection, job_id, ref, owner="", token=lease, front=True, spared=spared) == "queued"


def requeue(
    connection: Redis, job_id: str, ref: RqJobRef, *, owner: str, token: str, front: bool,
    retries_left: int | None = None, pause: int | None = None, ttl: int = 0, spared: int = 0, older: Sequence[str] = (),
) -> str:  # fmt: skip
    """Run `fencing/requeue.lua`, which explains `owner` and `token`, and return its answer.

    At the front the job comes after those of `older`, RQ's ids, that are there already.
    """
    queue = ref.queue
    return run_script(
        connection, "fencing/requeue", TEXT,
        keys=[
            keys.fence(job_id), keys.lease(job_id), queue.key, queue.intermediate_queue_key,
            queue.started_job_registry.key, ref.job_key, queue.scheduled_job_registry.key,
        ],
        args=[
            ref.rq_id, owner, token, "front" if front else "back", "" if retries_left is None else retries_left,
            ref.execution.encode(errors="surrogateescape"), ttl, spared, "" if pause is None else pause,
            *older,
        ],
    )  # fmt: skip
