"""Fencing tokens: Lua scripts reject every write of an attempt that a newer attempt has superseded.

The number of the newest attempt is the token. That an attempt is alive is shown by its lease, whose value changes with
each renewal, so that observers need no clock in common with its owner.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, TypeAdapter
from redis import Redis

from preflight.events.record import EVENT_RECORD, EventRecord
from preflight.redis import keys
from preflight.redis.lua import TEXT, run_script
from preflight.redis.replies import text
from preflight.redis.untrusted.reads import read_fields
from worker.broker.requeue import RqJobRef, requeue

LEASE_MS: Final = 12_000
"""Milliseconds after which Redis itself deletes a lease that is not renewed."""
MAX_DEATHS: Final = 3
"""Attempts in a row that may die without progress before their job is quarantined; as many as the job's retries where
those are more."""
MAX_FAILURE_BYTES: Final = 16 * 1024
"""Largest stored `job_failed`, in bytes; its texts have some 2,000 characters each."""
MAX_ROUNDS: Final = 20
"""Times that a finished job may be taken without its end being recorded before it is quarantined."""

ClaimStatus = Literal["claimed", "done", "busy", "poisoned", "looping", "mismatch", "over"]


class Superseded(Exception):
    """A newer attempt has taken over; this one can write nothing more."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Answer to a claim."""

    status: ClaimStatus
    number: int
    """Number of the attempt when `claimed`, of deaths when `poisoned`, of rounds when `looping`."""


@dataclass(frozen=True, slots=True)
class LeaseRenewal:
    """Answer to the renewal of a lease."""

    cancelled: bool
    """Whether the job is to stop."""
    records_lost: bool
    """Whether Redis lost its data, so that RQ's records of the job have to be restored."""


CLAIM: TypeAdapter[tuple[ClaimStatus, int]] = TypeAdapter(tuple[Annotated[ClaimStatus, BeforeValidator(text)], int])
RENEWAL: TypeAdapter[tuple[str, bool, bool]] = TypeAdapter(tuple[str, bool, bool])
PUBLISHED: TypeAdapter[tuple[str, int]] = TypeAdapter(tuple[str, int])


class Fence:
    """The fence of one job for one attempt.

    Every method raises `redis.exceptions.RedisError` when Redis does not answer, and may then be called again.
    """

    def __init__(self, connection: Redis, job_id: str, owner: str, *, ttl: int, request: str) -> None:
        """Make the fence of `job_id` for `owner`, the unique name of an execution.

        It is kept for `ttl` seconds after the last renewal. `request` is the digest of the request to which the id
        belongs until the job has failed.
        """
        self.connection = connection
        self.job_id = job_id
        self.owner = owner
        self._ttl = ttl
        self._request = request
        self._rq_id = job_id
        self._renewals = 0
        self.attempt = 0
        """Number of the claimed attempt; 0 before."""

    def resume(self, rq_id: str, attempt: int) -> None:
        """Resume an attempt that has ended; only events that follow its end can be published."""
        self._rq_id, self.attempt = rq_id, attempt

    def claim(self, rq_id: str, *, least: int = 1, max_deaths: int = MAX_DEATHS) -> Claim:
        """Begin an attempt, unless `claim.lua` finds a reason against it.

        Args:
            rq_id: RQ's id of the job.
            least: least number of the attempt; a Redis that lost its data would use one twice.
            max_deaths: attempts in a row that may die.
        """
        job_id, self._rq_id = self.job_id, rq_id
        status, number = run_script(
            self.connection, "fencing/claim", CLAIM,
            keys=[
                keys.fence(job_id), keys.lease(job_id), keys.result(job_id), keys.rq_job(rq_id), keys.alias(job_id),
                keys.rq_job(job_id),
            ],
            args=[self.owner, LEASE_MS, max_deaths, self._ttl, least, self._request, MAX_ROUNDS],
        )  # fmt: skip
        if status == "claimed":
            self.attempt = number
        return Claim(status, number)

    def renew_lease(self, *, progressed: bool, low_memory: bool = False) -> LeaseRenewal:
        """Renew the lease.

        Args:
            progressed: the attempt is beyond the one before, so that its death does not count.
            low_memory: the container is short of memory, so that its death is not the job's fault.

        Raises:
            Superseded: a newer attempt has taken over.
        """
        self._renewals += 1
        job_id = self.job_id
        status, cancelled, lost = run_script(
            self.connection, "fencing/renew_lease", RENEWAL,
            keys=[keys.fence(job_id), keys.lease(job_id), keys.cancel(job_id), keys.cancel(self._rq_id)],
            args=[
                self.owner, self.attempt, self._renewals, LEASE_MS, self._ttl, int(progressed), self._request,
                int(low_memory),
            ],
        )  # fmt: skip
        if status == "superseded":
            raise Superseded
        return LeaseRenewal(cancelled=cancelled, records_lost=lost)

    def publish(self, records: Sequence[EventRecord], *, before: Mapping[int, int], kept: int) -> int | None:
        """Append events to the streams and apply them to the state and RQ's `job.meta`, each exactly once.

        Args:
            records: the events in order; those that Redis has already are skipped.
            before: attempt -> seq of its last event that Redis has taken, as far as this attempt knows.
            kept: newest records kept in the event stream, roughly.

        Returns:
            The seq of the last event taken, or None when Redis has lost events that it had taken.

        Raises:
            Superseded: a newer attempt has taken over.
        """
        job_id = self.job_id
        status, last = run_script(
            self.connection, "fencing/publish", PUBLISHED,
            keys=[
                keys.fence(job_id), keys.events(job_id), keys.lifecycle(job_id), keys.state(job_id),
                keys.result(job_id), keys.rq_job(self._rq_id), keys.TOTALS, keys.alias(self._rq_id),
            ],
            args=[
                self.owner, self.attempt, json.dumps(before), self._ttl, kept, self._rq_id, job_id,
                *(EVENT_RECORD.dump_json(record, exclude_none=True) for record in records),
            ],
        )  # fmt: skip
        if status == "superseded":
            raise Superseded
        return None if status == "gap" else last

    def requeue(
        self, ref: RqJobRef, *, front: bool, retries_left: int | None = None, pause: int | None = None,
        older: Sequence[str] = (),
    ) -> str:  # fmt: skip
        """Put the job back into its queue, or schedule it, unless a newer attempt has taken over.

        Args:
            ref: RQ's records of the job.
            front: at the front of the queue instead of its end.
            retries_left: RQ's count from now on; None leaves it.
            pause: whole seconds after which it is queued; None: at once.
            older: RQ's ids of jobs that stay before this one at the front.

        Returns:
            The answer of `fencing/requeue.lua`; `gone`: nothing was done, RQ's records have to be restored first.
        """
        return requeue(
            self.connection, self.job_id, ref, owner=self.owner, token=str(self.attempt), front=front,
            retries_left=retries_left, pause=pause, ttl=self._ttl, older=older,
        )  # fmt: skip

    def set_alias(self) -> None:
        """Let RQ's id lead to the job, which another attempt runs or has run."""
        if self._rq_id != self.job_id:
            self.connection.set(keys.alias(self._rq_id), self.job_id, ex=self._ttl)

    def failure(self) -> str | None:
        """Return the failure, as JSON, that an earlier attempt published without recording it with RQ."""
        (stored,) = read_fields(self.connection, keys.fence(self.job_id), ["failure"], MAX_FAILURE_BYTES)
        return None if stored is None else text(stored)

    def release(self, *, failed: bool = False) -> None:
        """End the attempt of a job that has ended; after a failure another request may use its id."""
        job_id = self.job_id
        run_script(
            self.connection, "fencing/release", TEXT,
            keys=[keys.fence(job_id), keys.lease(job_id), keys.cancel(job_id), keys.cancel(self._rq_id)],
            args=[self.owner, self.attempt, self._ttl, int(failed)],
        )  # fmt: skip

    def end_round(self) -> None:
        """Note that the end of a finished job is recorded."""
        self.connection.hdel(keys.fence(self.job_id), "rounds")
