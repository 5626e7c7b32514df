"""Whose word counts about a job: every write is compared, in Lua, with the number of the newest attempt.

An attempt that was stopped, cut off or taken for dead may wake up after another has taken over. It then finds a
higher number than its own in the fence and can write nothing: no event, no state, no result. That a job runs at
all is shown by its lease, which changes at every beat: whoever watches it needs no clock in common with its owner.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter
from redis import Redis
from rq import Queue

from worker.broker import keys
from worker.broker.replies import text

LEASE_MS: Final = 12_000
"""Milliseconds after which Redis itself forgets a lease that is not renewed."""
DEATHS_ALLOWED: Final = 3
"""Attempts in a row that may die without having come further before their job is taken out; as many as the job's
retries where those are more."""
SPARED_DEATHS: Final = 10
"""Deaths of whole workers that were short of memory which do not count among them."""
MAX_ROUNDS: Final = 20
"""Times that a finished job may come out of the queue without its end being recorded, before it is taken out."""

LUA: Final = Path(__file__).parent / "scripts"

Word = Literal["claimed", "done", "busy", "poisoned", "looping", "mismatch", "over"]


class Superseded(Exception):
    """A newer attempt has taken over; this one has nothing more to say."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Answer to a claim."""

    word: Word
    number: int
    """Of the attempt when `claimed`; of the deaths when `poisoned`; of the rounds when `looping`."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What an attempt hears when it renews its lease."""

    cancelled: bool
    """Somebody asked for the job to stop."""
    records_lost: bool
    """Redis lost its data, and RQ's records of the job have to be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event as it is published."""

    attempt: int
    seq: int
    fields: Sequence[str]
    """Names and values of the stream record, in turn."""
    state: Sequence[str]
    """Names and values for the state hash, in turn."""
    lifecycle: bool
    first: bool
    """Whether the state is begun anew."""
    result: str | None
    """The job's result, which is stored with this event."""
    failure: str | None
    """The event that ends a failed attempt, as JSON, until its end is recorded with RQ."""
    meta: str | None
    """RQ's `job.meta` from now on."""
    totals: Mapping[str, float]
    """What it adds to the totals of all jobs."""


ENTRY = TypeAdapter(Entry)
WORD: TypeAdapter[Word] = TypeAdapter(Word)
TEXT = TypeAdapter(str)
PAIR: TypeAdapter[tuple[str, int]] = TypeAdapter(tuple[str, int])
TRIPLE: TypeAdapter[tuple[str, int, int]] = TypeAdapter(tuple[str, int, int])
"""What scripts answer; Redis sends bytes, which become text here."""


@cache
def script(name: str) -> str:
    """Return a script, with the functions that all of them share."""
    return "".join(
        (LUA / f"{part}.lua").read_text() for part in ("shared/guard", "shared/executions", "shared/accepted", name)
    )


def run_script(connection: Redis, name: str, *, keys: Sequence[str], args: Sequence[str | bytes | float]) -> str:
    """Run a script and return its answer, one word; raises `redis.exceptions.RedisError`."""
    return TEXT.validate_python(connection.register_script(script(name))(keys=list(keys), args=list(args)))


@dataclass(frozen=True, slots=True)
class Place:
    """Where RQ keeps a job."""

    queue: Queue
    rq_id: str
    execution: str
    """Id of RQ's execution; empty where there is none."""

    @property
    def job_key(self) -> str:
        """RQ's hash of the job."""
        return keys.rq_job(self.rq_id)


class Fence:
    """The fence of one job, as one attempt sees it.

    Every method raises `redis.exceptions.RedisError` when Redis does not answer; each may then be called again.
    """

    def __init__(self, connection: Redis, job_id: str, owner: str, *, ttl: int, request: str) -> None:
        """Make the fence of `job_id` for `owner`, a name that no other execution has.

        Args:
            connection: where.
            job_id: the job.
            owner: the execution that asks.
            ttl: seconds for which the fence is kept after the last sign of life.
            request: digest of the request; while the job goes on, or is finished, its id belongs to this one.
        """
        self._connection = connection
        self.job_id = job_id
        self.owner = owner
        self._ttl = ttl
        self._request = request
        self._beats = 0
        self.attempt = 0
        """Number of the claimed attempt; 0 before."""
        self._beat = connection.register_script(script("fencing/renew_lease"))
        self._publish = connection.register_script(script("fencing/publish"))

    def claim(self, rq_id: str, *, least: int = 1, deaths_allowed: int = DEATHS_ALLOWED) -> Claim:
        """Begin an attempt, unless the job is done, runs already, has killed its worker too often or is another's.

        Args:
            rq_id: under which RQ knows the job; where it has ended meanwhile, none begins.
            least: number of the attempt at least; a Redis that lost its data would use one twice.
            deaths_allowed: attempts in a row that may die.
        """
        job_id = self.job_id
        answer = self._connection.register_script(script("fencing/claim"))(
            keys=[keys.fence(job_id), keys.lease(job_id), keys.result(job_id), keys.rq_job(rq_id)],
            args=[self.owner, LEASE_MS, deaths_allowed, self._ttl, least, self._request, MAX_ROUNDS],
        )
        word, number = PAIR.validate_python(answer)
        claim = Claim(WORD.validate_python(word), number)
        if claim.word == "claimed":
            self.attempt = claim.number
        return claim

    def beat(self, *, further: bool, low_memory: bool = False) -> Beat:
        """Renew the lease.

        Args:
            further: the attempt has come further than the one before, so that its death would be no bad sign.
            low_memory: the container is short of memory, so that its death would not be the job's.

        Raises:
            Superseded: a newer attempt has taken over.
        """
        self._beats += 1
        job_id = self.job_id
        answer = self._beat(
            keys=[keys.fence(job_id), keys.lease(job_id), keys.cancel(job_id)],
            args=[
                self.owner, self.attempt, self._beats, LEASE_MS, self._ttl, int(further), self._request,
                int(low_memory),
            ],
        )  # fmt: skip
        match TRIPLE.validate_python(answer):
            case "superseded", _, _:
                raise Superseded
            case _, cancelled, lost:
                return Beat(cancelled=cancelled == 1, records_lost=lost == 1)

    def publish(self, entries: Sequence[Entry], rq_job_key: str, *, before: Mapping[int, int], kept: int) -> int | None:
        """Append events to the streams and fold them into the state, each exactly once.

        Args:
            entries: what, in order; those that Redis has already are passed over.
            rq_job_key: RQ's hash of the job, whose `meta` is kept up to date.
            before: attempt -> seq of its last event that Redis has taken, as far as this one knows.
            kept: newest records kept in the event stream, roughly.

        Returns the seq of the last event taken, or None when Redis has lost events that it had taken.

        Raises:
            Superseded: a newer attempt has taken over.
        """
        job_id = self.job_id
        answer = self._publish(
            keys=[
                keys.fence(job_id), keys.events(job_id), keys.lifecycle(job_id), keys.state(job_id),
                keys.result(job_id), rq_job_key, keys.TOTALS,
            ],
            args=[
                self.owner, self.attempt, json.dumps(before), self._ttl, kept,
                *(ENTRY.dump_json(entry, exclude_none=True) for entry in entries),
            ],
        )  # fmt: skip
        match PAIR.validate_python(answer):
            case "superseded", _:
                raise Superseded
            case "gap", _:
                return None
            case _, last:
                return last

    def hand_back(self, place: Place, *, front: bool, retries_left: int | None = None) -> str:
        """Put the job back into its queue; does nothing when a newer attempt has taken over.

        Args:
            place: where it came from.
            front: before all others, instead of behind them.
            retries_left: RQ's count from now on; None leaves it.

        Returns the answer of `requeue.lua`; `gone`: nothing was done, RQ's records have to be restored first.
        """
        return hand_back(
            self._connection, self.job_id, place, owner=self.owner, word=str(self.attempt), front=front,
            retries_left=retries_left, ttl=self._ttl,
        )  # fmt: skip

    def failure(self) -> str | None:
        """Return the failure that an earlier attempt published and did not come to record with RQ, as JSON."""
        stored = self._connection.hget(keys.fence(self.job_id), "failure")
        return None if stored is None else text(stored)

    def rest(self, *, failed: bool = False) -> None:
        """End the attempt: the job is settled; where it failed, another request may have its id."""
        job_id = self.job_id
        run_script(
            self._connection, "fencing/release", keys=[keys.fence(job_id), keys.lease(job_id), keys.cancel(job_id)],
            args=[self.owner, self.attempt, self._ttl, int(failed)],
        )  # fmt: skip

    def end_round(self) -> None:
        """Note that the end of a finished job is recorded."""
        self._connection.hdel(keys.fence(self.job_id), "rounds")


def step_aside(connection: Redis, place: Place) -> None:
    """Give up an execution of a job that another attempt is running; the job comes round again."""
    queue = place.queue
    run_script(
        connection, "fencing/defer", keys=[queue.key, queue.intermediate_queue_key, queue.started_job_registry.key],
        args=[place.rq_id, place.execution],
    )  # fmt: skip


def lease_of(connection: Redis, job_id: str) -> str:
    """Return the lease of a job; empty where there is none."""
    value = connection.get(keys.lease(job_id))
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def take_back(connection: Redis, job_id: str, place: Place, *, lease: str, worker_died: bool = False) -> bool:
    """Put a job whose attempt is dead back at the front of its queue; returns whether it waits there now.

    Nothing happens when the lease is no longer `lease`: then it lives.

    Args:
        connection: where.
        job_id: the job.
        place: where it came from.
        lease: as it was seen last.
        worker_died: the whole worker, and not the supervisor alone: no sign against a job where memory was short.
    """
    spared = SPARED_DEATHS if worker_died else 0
    return hand_back(connection, job_id, place, owner="", word=lease, front=True, spared=spared) == "queued"


def hand_back(
    connection: Redis, job_id: str, place: Place, *, owner: str, word: str, front: bool,
    retries_left: int | None = None, ttl: int = 0, spared: int = 0,
) -> str:  # fmt: skip
    """Run `requeue.lua` and return its answer."""
    queue = place.queue
    return run_script(
        connection, "fencing/requeue",
        keys=[
            keys.fence(job_id), keys.lease(job_id), queue.key, queue.intermediate_queue_key,
            queue.started_job_registry.key, place.job_key,
        ],
        args=[
            place.rq_id, owner, word, "front" if front else "back", "" if retries_left is None else retries_left,
            place.execution.encode(errors="surrogateescape"), ttl, spared,
        ],
    )  # fmt: skip
