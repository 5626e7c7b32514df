"""Seats in Redis: a leader offers them, idle workers take them. One script an action; each raises `RedisError`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, TypeAdapter
from redis import Redis

from preflight.redis import keys
from preflight.redis.lua import TEXT, run_script
from preflight.redis.replies import text
from preflight.redis.untrusted.values import Refused, as_text, as_whole
from preflight.wire import is_job_id
from worker.broker.fencing import Fence, Superseded
from worker.features.groups.messages import MAX_REQUEST_BYTES

IDLE_MS: Final = 6_000
"""Milliseconds after which a worker that has not reported again is not idle any more."""
OVER_SECONDS: Final = 60
"""Seconds for which Redis notes for its members that a group is over."""
MAX_OFFER_BYTES: Final = 40
MAX_ATTEMPT: Final = 10**9 - 1
MAX_OFFERS: Final = 16
"""Offers that an idle worker reads at once, chosen at random."""

Sat = Literal["taken", "full", "refused", "over"]
Verdict = Literal["stays", "forgotten", "leaves", "refused"]
Kept = Literal["seated", "over", "lost"]

Text = Annotated[str, BeforeValidator(text)]
"""Text that other workers wrote; bytes that are not UTF-8 are replaced: a signature then no longer matches."""
SAT: TypeAdapter[tuple[Sat, str]] = TypeAdapter(tuple[Annotated[Sat, BeforeValidator(text)], Text])
BEAT: TypeAdapter[tuple[Kept, str, int]] = TypeAdapter(tuple[Annotated[Kept, BeforeValidator(text)], Text, int])
LED: TypeAdapter[tuple[str, int, int, bool, list[tuple[str, int, str]]]] = TypeAdapter(
    tuple[str, int, int, bool, list[tuple[Text, int, Text]]]
)
OFFERS = TypeAdapter(list[bytes])


@dataclass(frozen=True, slots=True, order=True)
class Offer:
    """Free seats in the group of a job; the oldest comes first."""

    since: int
    """Time since which seats are offered, in milliseconds of Redis's clock."""
    job_id: str
    attempt: int
    short: bool
    """Whether the job cannot be trained without more members."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An order for one member, and what becomes of its seat."""

    worker: str
    order: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class SeatTaken:
    """A worker that has a seat."""

    worker: str
    age_s: float
    """Seconds since its beat."""
    sealed: str


@dataclass(frozen=True, slots=True)
class Led:
    """Reply to a leader: jobs, idle workers and seats."""

    waiting: int
    """Jobs in the queue."""
    idle: int
    """Workers that may sit down."""
    older_is_short: bool
    """Whether an older group needs members before this one."""
    seats: Sequence[SeatTaken]


def read_offers(connection: Redis, queue: str, worker: str) -> list[Offer]:
    """Note that `worker` is idle, and return some offers of its queue, the oldest first."""
    found = run_script(
        connection, "group/offers", OFFERS, keys=[keys.offers(queue), keys.idle_workers(queue)],
        args=[worker, MAX_OFFERS],
    )  # fmt: skip
    return parse_offers(dict(zip(found[::2], found[1::2], strict=True)))


def parse_offers(found: Mapping[bytes, bytes]) -> list[Offer]:
    """Return the offers among the fields of their hash, the oldest first; invalid ones are skipped."""
    offers = []
    for name, offer in found.items():
        with suppress(Refused):
            job_id, words = as_text(name, 64), as_text(offer, MAX_OFFER_BYTES).split(" ")
            match words:
                case [since, attempt, ("short" | "open") as state] if is_job_id(job_id):
                    since_ms, number = as_whole(since, 0, 10**15), as_whole(attempt, 1, MAX_ATTEMPT)
                    offers.append(Offer(since_ms, job_id, number, state == "short"))
    return sorted(offers)


class MemberSeat:
    """The seat of one worker."""

    def __init__(self, connection: Redis, queue: str, offer: Offer, worker: str) -> None:
        self._connection = connection
        self._queue = queue
        self._offer = offer
        self._worker = worker

    def sit(self, sealed: str) -> tuple[Sat, str]:
        """Take the seat; returns whether it is taken, and if so the leader's request."""
        job_id = self._offer.job_id
        return run_script(
            self._connection, "group/sit", SAT,
            keys=[
                keys.fence(job_id), keys.lease(job_id), keys.offers(self._queue), keys.group(job_id),
                keys.idle_workers(self._queue),
            ],
            args=[job_id, self._offer.attempt, self._worker, sealed, MAX_REQUEST_BYTES],
        )  # fmt: skip

    def beat(self, sealed: str) -> tuple[Kept, str, float]:
        """Keep the seat; returns whether there is one, the leader's order, and seconds since the leader was heard."""
        kept, order, heard_ms = run_script(
            self._connection, "group/beat", BEAT, keys=[keys.group(self._offer.job_id)],
            args=[self._offer.attempt, self._worker, sealed],
        )  # fmt: skip
        return kept, order, heard_ms / 1000

    def leave(self) -> None:
        """Give the seat up."""
        run_script(
            self._connection, "group/leave", TEXT, keys=[keys.group(self._offer.job_id)],
            args=[self._offer.attempt, self._worker],
        )  # fmt: skip


class LeaderSeats:
    """The seats that the attempt of a fence offers."""

    def __init__(self, connection: Redis, queue: str, fence: Fence, *, ttl: int) -> None:
        """Offer seats to idle workers of `queue`; the keys of its group outlive the leader by `ttl` seconds."""
        self._connection = connection
        self._queue = queue
        self._fence = fence
        self._ttl = ttl

    def lead(
        self, seats: int, request: str, offer: Literal["open", "short", ""], instructions: Sequence[Instruction]
    ) -> Led:
        """Offer `seats` in all, or none more with an empty `offer`; give orders; read the seats.

        Raises:
            Superseded: a newer attempt has taken over.
        """
        fence, job_id = self._fence, self._fence.job_id
        status, waiting, idle, older, taken = run_script(
            self._connection, "group/lead", LED,
            keys=[
                keys.fence(job_id), keys.offers(self._queue), keys.group(job_id), keys.idle_workers(self._queue),
                keys.rq_queue(self._queue),
            ],
            args=[
                fence.owner, fence.attempt, self._ttl, job_id, seats, request, offer, IDLE_MS,
                *(part for one in instructions for part in (one.worker, one.order, one.verdict)),
            ],
        )  # fmt: skip
        if status == "superseded":
            raise Superseded
        return Led(waiting, idle, older, [SeatTaken(worker, age / 1000, sealed) for worker, age, sealed in taken])

    def waiting(self) -> int:
        """Return how many jobs wait in the queue."""
        return self._connection.llen(keys.rq_queue(self._queue))

    def disband(self) -> None:
        """End the group; Redis notes that for its members."""
        fence, job_id = self._fence, self._fence.job_id
        run_script(
            self._connection, "group/disband", TEXT,
            keys=[keys.fence(job_id), keys.offers(self._queue), keys.group(job_id)],
            args=[fence.owner, fence.attempt, job_id, OVER_SECONDS],
        )  # fmt: skip
