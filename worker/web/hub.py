"""Events of watched jobs, read once for all viewers: one connection to Redis, however many there are."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.typing import KeyT, StreamIdT

from worker import keys
from worker.answers import texts
from worker.client import PAGE, QUIET
from worker.patience import trouble
from worker.wire import EVENTS_KEPT, LAST, unflatten

WAIT_MS: Final = 200
"""Longest that one read waits for an event; a job that is newly watched is heard after as long."""
KEEP_ALIVE: Final = 10.0
"""Seconds of silence after which a viewer is told that the connection stands."""
PAUSE: Final = 0.5
"""Seconds between two tries while Redis is away."""
LINGER: Final = 10.0
"""Seconds for which a job's events are kept after its last viewer has left: whoever reconnects needs no second read."""
MOST_WATCHED: Final = 200
"""Jobs watched at once by all viewers together."""
AT_ONCE: Final = 500
"""Records sent to a viewer in one piece."""
AGAIN: Final = 0.3
"""Seconds after which that is asked again of a job that may have ended."""
SAY_EVERY: Final = 10.0
"""Seconds between two log lines while Redis is away."""

BEGINNING: Final = "0-0"
"""Id before all others in a stream."""

Records = list[tuple[bytes, dict[bytes, bytes]]]
"""Of one stream: id and fields."""

RECORDS: Final = TypeAdapter(Records)
ANSWER: Final = TypeAdapter(list[tuple[bytes, Records]])
"""What XREAD answers, by stream."""


@dataclass(frozen=True, slots=True)
class Said:
    """One record of a job's event stream, ready to be sent."""

    place: tuple[int, int]
    """Its id in the stream, in numbers."""
    number: tuple[int, int]
    """Its attempt, and its number there."""
    text: bytes
    """As a server-sent event."""
    last: bool
    """Whether an attempt says nothing after it."""


@dataclass(slots=True)
class Watched:
    """A job that somebody watches: what it has said, oldest first."""

    said: list[Said] = field(default_factory=list)
    read: str = BEGINNING
    """Id of the last record that was read."""
    caught_up: bool = False
    """Whether all has been read that was there when the first viewer came."""
    ask_at: float = 0.0
    """When it is worth asking again whether the job goes on."""
    ending: bool = False
    """It did not go on when that was asked last, and nothing came since."""
    over: bool = False
    """It did not go on when that was asked twice in a row: there will be nothing more."""
    viewers: int = 0
    left_at: float = 0.0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when there is something new."""

    @property
    def has_last_word(self) -> bool:
        """Whether the last that was said is what an attempt ends with."""
        return bool(self.said) and self.said[-1].last

    def behind(self, place: tuple[int, int]) -> Sequence[Said]:
        """Return the records behind `place`, at most `AT_ONCE`."""
        first = bisect_right(self.said, place, key=lambda said: said.place)
        return self.said[first : first + AT_ONCE]

    def wake(self) -> None:
        """Tell every viewer."""
        self.changed.set()
        self.changed = asyncio.Event()


class Hub:
    """Reads the streams of all watched jobs in one task, and lets any number of viewers follow them."""

    def __init__(self, redis: Redis, goes_on: Callable[[str], Awaitable[bool]]) -> None:
        """Read from `redis`; `goes_on` tells of a job whether more is to be expected of it."""
        self._redis = redis
        self._goes_on = goes_on
        self._jobs: dict[str, Watched] = {}
        self._anyone = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self.closing = False
        """Whether every viewer is let go."""
        self.away = False
        """Whether Redis did not answer the last time."""

    def start(self) -> None:
        """Begin to read."""
        self._reader = asyncio.get_running_loop().create_task(self._read_for_ever(), name="hub")

    async def close(self) -> None:
        """Let every viewer go, and read no more."""
        self.let_go()
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader

    def let_go(self) -> None:
        """End all streams."""
        self.closing = True
        for watched in self._jobs.values():
            watched.wake()

    @property
    def viewers(self) -> int:
        """How many follow something."""
        return sum(watched.viewers for watched in self._jobs.values())

    def has_room(self, job_id: str) -> bool:
        """Whether one more viewer of this job can be served."""
        return job_id in self._jobs or len(self._jobs) < MOST_WATCHED

    async def follow(self, job_id: str, after: str) -> AsyncIterator[Sequence[Said]]:
        """Yield a job's records behind `after` as they come, until it has ended; an empty piece after a long silence.

        Args:
            job_id: which job; `has_room` has said yes.
            after: id of a stream record, `0` for all that are kept.
        """
        watched = self._watched(job_id)
        watched.viewers += 1
        try:
            place = place_of(after)
            while not self.closing:
                changed = watched.changed
                piece = watched.behind(place)
                if piece:
                    place = piece[-1].place
                    yield piece
                elif watched.over:
                    return
                elif not await _set_within(changed, KEEP_ALIVE):
                    yield ()
        finally:
            watched.viewers -= 1
            watched.left_at = time.monotonic()

    def _watched(self, job_id: str) -> Watched:
        watched = self._jobs.get(job_id)
        if watched is None or watched.over:  # a job that was over may have been enqueued again
            watched = self._jobs[job_id] = Watched()
            self._anyone.set()
        return watched

    # --- the one reader

    async def _read_for_ever(self) -> None:
        say_at = 0.0
        while True:
            if not self._jobs:
                self._anyone.clear()
                await self._anyone.wait()
            try:
                await self._read()
                self.away = False
            except RedisError as error:
                self.away = True
                if time.monotonic() >= say_at:
                    structlog.get_logger("preflight").warning(
                        "waiting_for_redis", to="read events", detail=trouble(error)
                    )
                    say_at = time.monotonic() + SAY_EVERY
                await asyncio.sleep(PAUSE)

    async def _read(self) -> None:
        self._forget()
        if not self._jobs:
            return
        by_key = {keys.events(job_id).encode(): (job_id, watched) for job_id, watched in self._jobs.items()}
        places: dict[KeyT, StreamIdT] = {key: watched.read for key, (_, watched) in by_key.items()}
        fresh = any(not watched.caught_up for watched in self._jobs.values())
        answer = ANSWER.validate_python(
            await self._redis.xread(places, count=PAGE, block=None if fresh else WAIT_MS) or []
        )
        for key, records in answer:
            job_id, watched = by_key[key]
            said = _all_said(records)
            if said and watched.read == BEGINNING:
                said[:0] = await self._turning_points_before(said[0], job_id)
            watched.said = [*watched.said, *said][-EVENTS_KEPT:]
            watched.read = records[-1][0].decode()
            watched.wake()
        full = {key for key, records in answer if len(records) == PAGE}
        heard = {key for key, _ in answer}
        for key, (job_id, watched) in by_key.items():
            watched.caught_up |= key not in full
            if key in heard:
                watched.ending, watched.ask_at = False, 0.0 if watched.has_last_word else time.monotonic() + QUIET
            if watched.caught_up and not watched.over and time.monotonic() >= watched.ask_at:
                await self._ask(job_id, watched)

    async def _turning_points_before(self, first: Said, job_id: str) -> list[Said]:
        """Return what a long job's stream has lost and the one that is never trimmed still has: its start, its plan."""
        records = RECORDS.validate_python(await self._redis.xrange(keys.lifecycle(job_id), count=PAGE) or [])
        return [said for said in _all_said(records) if said.number < first.number and said.place < first.place]

    async def _ask(self, job_id: str, watched: Watched) -> None:
        """Find out whether the job goes on; RQ decides on a retry a moment after the job has said that it failed."""
        goes_on = await self._goes_on(job_id)
        watched.over, watched.ending = watched.ending and not goes_on, not goes_on
        watched.ask_at = time.monotonic() + (QUIET if goes_on and not watched.has_last_word else AGAIN)
        if watched.over:
            watched.wake()

    def _forget(self) -> None:
        now = time.monotonic()
        gone = [name for name, one in self._jobs.items() if not one.viewers and now - one.left_at > LINGER]
        for job_id in gone:
            del self._jobs[job_id]


def place_of(record_id: str) -> tuple[int, int]:
    """Return a stream record's id in numbers; (0, 0) for what is none."""
    milliseconds, _, number = record_id.partition("-")
    if not (milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) <= 20):
        return 0, 0
    return int(milliseconds), int(number) if number.isascii() and number.isdigit() and len(number) <= 20 else 0


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set before `seconds` were over."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _all_said(records: Records) -> list[Said]:
    """Return the records that are events."""
    return [said for record_id, fields in records if (said := _said(record_id.decode(), fields)) is not None]


def _said(record_id: str, fields: dict[bytes, bytes]) -> Said | None:
    """Return a stream record as it is sent; None for one of a newer version or from somebody else."""
    try:
        event = unflatten(texts(fields))
    except ValidationError:
        return None
    data = event.model_dump_json(exclude_none=True)
    return Said(
        place=place_of(record_id),
        number=(event.attempt, event.seq),
        text=f"id: {record_id}\nevent: {event.type}\ndata: {data}\n\n".encode(),
        last=event.type in LAST,
    )
