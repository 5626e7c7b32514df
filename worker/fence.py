"""Whose word counts about a job: every write is compared, in Lua, with the number of the newest attempt.

An attempt that was stopped, cut off or taken for dead may wake up after another has taken over. It then finds a
higher number than its own in the fence and can write nothing: no event, no state, no result. That a job runs at
all is shown by its lease, which changes at every beat: whoever watches it needs no clock in common with its owner.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import TypeAdapter
from redis import Redis
from rq import Queue

from worker import keys

LEASE_MS: Final = 12_000
"""Milliseconds after which Redis itself forgets a lease that is not renewed."""
DEATHS_ALLOWED: Final = 3
"""Attempts in a row that may die without having come further before their job is taken out."""

LUA: Final = Path(__file__).parent / "lua"

Word = Literal["claimed", "done", "busy", "poisoned"]


class Superseded(Exception):
    """A newer attempt has taken over; this one has nothing more to say."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Answer to a claim."""

    word: Word
    number: int
    """Of the attempt when `claimed`; of the deaths when `poisoned`."""


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
    meta: str | None
    """RQ's `job.meta` from now on."""
    totals: Mapping[str, float]
    """What it adds to the totals of all jobs."""


ENTRY = TypeAdapter(Entry)
WORD: TypeAdapter[Word] = TypeAdapter(Word)
TEXT = TypeAdapter(str)
PAIR: TypeAdapter[tuple[str, int]] = TypeAdapter(tuple[str, int])
"""What scripts answer; Redis sends bytes, which become text here."""


def _script(name: str, *, guarded: bool = True) -> str:
    guard = (LUA / "guard.lua").read_text() if guarded else ""
    return guard + (LUA / f"{name}.lua").read_text()


def _text(answer: object) -> str:
    return TEXT.validate_python(answer)


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
        return self.queue.job_class.key_for(self.rq_id)


class Fence:
    """The fence of one job, as one attempt sees it.

    Every method raises `redis.exceptions.RedisError` when Redis does not answer; each may then be called again.
    """

    def __init__(self, connection: Redis, job_id: str, owner: str, *, ttl: int) -> None:
        """Make the fence of `job_id` for `owner`, a name that no other execution has.

        Args:
            connection: where.
            job_id: the job.
            owner: the execution that asks.
            ttl: seconds for which the fence is kept after the last sign of life.
        """
        self._connection = connection
        self._job_id = job_id
        self._owner = owner
        self._ttl = ttl
        self._beats = 0
        self.attempt = 0
        """Number of the claimed attempt; 0 before."""
        self._beat = connection.register_script(_script("beat"))
        self._publish = connection.register_script(_script("publish"))

    def claim(self, *, least: int = 1) -> Claim:
        """Begin an attempt, unless the job is done, runs already or has killed its worker too often.

        Args:
            least: number of the attempt at least; a Redis that lost its data would use one twice.
        """
        job_id = self._job_id
        answer = self._connection.register_script(_script("claim", guarded=False))(
            keys=[keys.fence(job_id), keys.lease(job_id), keys.result(job_id)],
            args=[self._owner, LEASE_MS, DEATHS_ALLOWED, self._ttl, least],
        )
        word, number = PAIR.validate_python(answer)
        claim = Claim(WORD.validate_python(word), number)
        if claim.word == "claimed":
            self.attempt = claim.number
        return claim

    def beat(self, *, further: bool) -> bool:
        """Renew the lease; returns whether somebody asked for the job to be cancelled.

        Args:
            further: the attempt has come further than the one before, so that its death would be no bad sign.

        Raises:
            Superseded: a newer attempt has taken over.
        """
        self._beats += 1
        job_id = self._job_id
        answer = self._beat(
            keys=[keys.fence(job_id), keys.lease(job_id), keys.cancel(job_id)],
            args=[self._owner, self.attempt, self._beats, LEASE_MS, self._ttl, int(further)],
        )
        match _text(answer):
            case "superseded":
                raise Superseded
            case word:
                return word == "cancelled"

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
        job_id = self._job_id
        answer = self._publish(
            keys=[
                keys.fence(job_id), keys.events(job_id), keys.lifecycle(job_id), keys.state(job_id),
                keys.result(job_id), rq_job_key, keys.TOTALS,
            ],
            args=[
                self._owner, self.attempt, json.dumps(before), self._ttl, kept,
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

    def hand_back(self, place: Place, *, front: bool, retries_left: int | None = None) -> None:
        """Put the job back into its queue; does nothing when a newer attempt has taken over.

        Args:
            place: where it came from.
            front: before all others, instead of behind them.
            retries_left: RQ's count from now on; None leaves it.
        """
        hand_back(
            self._connection, self._job_id, place, owner=self._owner, word=str(self.attempt), front=front,
            retries_left=retries_left, ttl=self._ttl,
        )  # fmt: skip

    def rest(self) -> None:
        """End the attempt: the job is settled."""
        job_id = self._job_id
        self._connection.register_script(_script("rest"))(
            keys=[keys.fence(job_id), keys.lease(job_id), keys.cancel(job_id)],
            args=[self._owner, self.attempt, self._ttl],
        )


def step_aside(connection: Redis, place: Place) -> None:
    """Give up an execution of a job that another attempt is running; the job comes round again."""
    queue = place.queue
    connection.register_script(_script("step_aside", guarded=False))(
        keys=[queue.key, queue.intermediate_queue_key, queue.started_job_registry.key],
        args=[place.rq_id, place.execution],
    )


def lease_of(connection: Redis, job_id: str) -> str:
    """Return the lease of a job; empty where there is none."""
    value = connection.get(keys.lease(job_id))
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def take_back(connection: Redis, job_id: str, place: Place, *, lease: str) -> bool:
    """Put a job whose attempt is dead back at the front of its queue; returns whether it waits there now.

    Nothing happens when the lease is no longer `lease`: then it lives.
    """
    return hand_back(connection, job_id, place, owner="", word=lease, front=True) == "queued"


def hand_back(
    connection: Redis, job_id: str, place: Place, *, owner: str, word: str, front: bool,
    retries_left: int | None = None, ttl: int = 0,
) -> str:  # fmt: skip
    """Run `hand_back.lua` and return its answer."""
    queue = place.queue
    answer = connection.register_script(_script("hand_back"))(
        keys=[
            keys.fence(job_id), keys.lease(job_id), queue.key, queue.intermediate_queue_key,
            queue.started_job_registry.key, place.job_key,
        ],
        args=[
            place.rq_id, owner, word, "front" if front else "back",
            "" if retries_left is None else retries_left, place.execution.encode(errors="surrogateescape"), ttl,
        ],
    )  # fmt: skip
    return _text(answer)
