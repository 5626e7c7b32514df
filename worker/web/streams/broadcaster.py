"""Fan-out of job events: one connection tails every watched stream, however many viewers there are.

The newest records of a watched job are kept in memory, and so are pages of older ones, both within a budget of bytes. A
viewer that is behind what is kept reads from Redis.
"""

import asyncio
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog
from pydantic import TypeAdapter, ValidationError
from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.typing import KeyT, StreamIdT

from worker.broker import keys
from worker.broker.replies import texts
from worker.broker.retry import spoiled, trouble
from worker.client.client import PAGE, QUIET
from worker.wire import LAST, unflatten

WAIT_MS: Final = 200
"""Longest that one read waits for an event; a job that is newly watched is heard after as long."""
KEEP_ALIVE: Final = 10.0
"""Seconds of silence after which a viewer is told that the connection stands."""
PAUSE: Final = 0.5
"""Seconds between two tries while Redis is away."""
LINGER: Final = 10.0
"""Seconds for which a job is followed after its last viewer has left: whoever reconnects needs no second read."""
MOST_WATCHED: Final = 200
"""Jobs watched at once by all viewers together."""
EACH: Final = 20
"""Records of each watched stream read at once: of all of them together that is one answer."""
AT_ONCE: Final = 100
"""Older records of one stream read at once."""
PIECE: Final = 64 * 1024
"""Bytes after which a viewer is sent what has been read."""
TAIL: Final = 32 * 1024
"""Bytes of a job's newest records that are kept: what a viewer that keeps up is sent from."""
PAGES: Final = 16 * 1024 * 1024
"""Bytes of older records kept for all jobs together: viewers that begin at the same place share them."""
LOADS: Final = 4
"""Pages read at once; the others wait, so that a thousand viewers take no more memory than these."""
AGAIN: Final = 0.3
"""Seconds after which that is asked again of a job that may have ended."""
SAY_EVERY: Final = 10.0
"""Seconds between two log lines while Redis is away."""

Place = tuple[int, int]
"""Id of a stream record, in numbers."""
BEGINNING: Final[Place] = (0, 0)
"""Before all others in a stream."""
LARGEST: Final[Place] = (2**64 - 1, 2**64 - 1)
"""Nothing can follow it; Redis refuses a range that begins behind it."""

Records = list[tuple[bytes, dict[bytes, bytes]]]
"""Of one stream: id and fields."""

RECORDS: Final = TypeAdapter(Records)
ANSWER: Final = TypeAdapter(list[tuple[bytes, Records]])
"""What XREAD answers, by stream."""


class Unreadable(Exception):
    """The events of a job cannot be read: its key in Redis is no stream."""

    reason: Final = "unreadable_events"

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"the Redis key {keys.events(job_id)!r} is no stream, so no events can be read; remove the key"
        )


class TooManyWatched(Exception):
    """No more jobs can be watched at once."""

    reason: Final = "too_many_watched"

    def __init__(self) -> None:
        super().__init__(f"events of {MOST_WATCHED} jobs are followed already; close some and ask again")


@dataclass(frozen=True, slots=True)
class Said:
    """One record of a job's event stream, ready to be sent."""

    place: Place
    number: tuple[int, int]
    """Its attempt, and its number there."""
    text: bytes
    """As a server-sent event."""
    last: bool
    """Whether an attempt says nothing after it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a viewer is sent at once, and where it stands then."""

    place: Place
    text: bytes


@dataclass(slots=True)
class Watched:
    """A job that somebody watches, and the tail of its stream."""

    job_id: str
    read: Place
    """Of the last record that was read."""
    start: Place
    """Every event behind it is in `tail`."""
    has_last_word: bool
    """Whether the last that was said is what an attempt ends with."""
    tail: list[Said] = field(default_factory=list)
    ask_at: float = 0.0
    """When it is worth asking again whether the job goes on."""
    ending: bool = False
    """It did not go on when that was asked last, and nothing came since."""
    over: bool = False
    """It did not go on when that was asked twice in a row: there will be nothing more."""
    unreadable: bool = False
    """Its key is no stream any more."""
    viewers: int = 0
    left_at: float = field(default_factory=time.monotonic)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when there is something new."""

    def hear(self, records: Records) -> None:
        """Take new records, and let go of the oldest beyond `TAIL`."""
        said = _all_said(records)
        self.tail += said
        self.read = place_of(records[-1][0].decode())
        size, kept = 0, len(self.tail)
        while kept and size < TAIL:
            kept -= 1
            size += len(self.tail[kept].text)
        if kept:
            self.start = self.tail[kept - 1].place
            del self.tail[:kept]
        self.has_last_word = said[-1].last if said else self.has_last_word
        self.ending, self.ask_at = False, 0.0 if self.has_last_word else time.monotonic() + QUIET

    def behind(self, place: Place) -> Piece | None:
        """Return the events behind `place`, which is not before `start`; None where there are none."""
        first = bisect_right(self.tail, place, key=lambda said: said.place)
        if first == len(self.tail):
            return None
        return Piece(self.tail[-1].place, b"".join(said.text for said in self.tail[first:]))

    def wake(self) -> None:
        """Tell every viewer."""
        self.changed.set()
        self.changed = asyncio.Event()


class Pages:
    """Pieces of streams, by job and the place behind which they begin; the least recently used are let go."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[str, Place], Piece] = OrderedDict()
        self._size = 0

    def find(self, job_id: str, place: Place) -> Piece | None:
        """Return a piece if it is still there."""
        piece = self._pages.get((job_id, place))
        if piece is not None:
            self._pages.move_to_end((job_id, place))
        return piece

    def keep(self, job_id: str, place: Place, piece: Piece) -> None:
        """Keep a piece, and as many others as there is room for."""
        self._drop((job_id, place))
        self._pages[job_id, place] = piece
        self._size += len(piece.text)
        while self._size > PAGES:
            self._drop(next(iter(self._pages)))

    def forget(self, job_id: str) -> None:
        """Let go of a job's pieces."""
        for key in [key for key in self._pages if key[0] == job_id]:
            self._drop(key)

    def _drop(self, key: tuple[str, Place]) -> None:
        piece = self._pages.pop(key, None)
        self._size -= 0 if piece is None else len(piece.text)


class Hub:
    """Reads the streams of all watched jobs in one task, and lets any number of viewers follow them."""

    def __init__(self, redis: Redis, goes_on: Callable[[str], Awaitable[bool]]) -> None:
        """Read from `redis`; `goes_on` tells of a job whether more is to be expected of it."""
        self._redis = redis
        self._goes_on = goes_on
        self._jobs: dict[str, Watched] = {}
        self._pages = Pages()
        # redis-py raises where more than a hundred ask at once.
        self._looks, self._loads = asyncio.Semaphore(LOADS), asyncio.Semaphore(LOADS)
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

    async def watch(self, job_id: str) -> Watched:
        """Return a job whose stream is read from now on, to be followed at once.

        Raises:
            TooManyWatched: so many others are.
            Unreadable: its key is no stream.
            redis.exceptions.RedisError: Redis did not answer.
        """
        if (found := self._found(job_id)) is not None:
            return found
        async with self._looks:
            newest = await self._newest(job_id)
        if (found := self._found(job_id)) is not None:  # another viewer came meanwhile
            return found
        if job_id not in self._jobs and len(self._jobs) >= MOST_WATCHED:
            raise TooManyWatched
        place = place_of(newest[0][0].decode()) if newest else BEGINNING
        ended = any(said.last for said in _all_said(newest))
        self._pages.forget(job_id)
        watched = self._jobs[job_id] = Watched(job_id, read=place, start=place, has_last_word=ended)
        self._anyone.set()
        return watched

    async def follow(self, watched: Watched, after: str) -> AsyncIterator[bytes]:
        """Yield a job's events behind the record `after` as they come, until it has ended; `b""` after a long silence.

        Args:
            watched: the job, as `watch` returned it just now.
            after: id of a stream record, `0` for all that are kept.

        Raises:
            Unreadable: its key is no stream any more.
        """
        watched.viewers += 1
        try:
            place = place_of(after)
            while not self.closing:
                changed = watched.changed
                if watched.unreadable:
                    raise Unreadable(watched.job_id)
                late = place < watched.start
                piece = await self._page(watched, place) if late else watched.behind(place)
                if piece is not None:
                    place = piece.place
                    if piece.text:
                        yield piece.text
                elif late:
                    yield b""
                elif watched.over:
                    return
                elif not await _set_within(changed, KEEP_ALIVE):
                    yield b""
        finally:
            watched.viewers -= 1
            watched.left_at = time.monotonic()

    def _found(self, job_id: str) -> Watched | None:
        """Return a job that is watched; one that was over, or could not be read, is looked at again."""
        found = self._jobs.get(job_id)
        return None if found is None or found.over or found.unreadable else found

    async def _newest(self, job_id: str) -> Records:
        """Return the last record of a job's stream, if there is one; raises `Unreadable`, `RedisError`."""
        try:
            return RECORDS.validate_python(await self._redis.xrevrange(keys.events(job_id), count=1) or [])
        except RedisError as error:
            if spoiled(error):
                raise Unreadable(job_id) from error
            raise

    # --- pages of what is not in the tail

    async def _page(self, watched: Watched, place: Place) -> Piece | None:
        """Return events behind `place`, which is before the tail; None after a pause where Redis is away."""
        found = self._pages.find(watched.job_id, place)
        if found is not None:
            return found
        async with self._loads:
            found = self._pages.find(watched.job_id, place)  # another viewer may have read it meanwhile
            if found is not None:
                return found
            try:
                return await self._load(watched, place)
            except RedisError as error:
                if spoiled(error):
                    raise Unreadable(watched.job_id) from error
        await asyncio.sleep(PAUSE)
        return None

    async def _load(self, watched: Watched, place: Place) -> Piece:
        start = watched.start
        records = RECORDS.validate_python(
            await self._redis.xrange(keys.events(watched.job_id), f"({_id_of(place)}", count=AT_ONCE) or []
        )
        said = _all_said(records)
        if said and place == BEGINNING:
            said[:0] = await self._turning_points_before(said[0], watched.job_id)
        sent, size = 0, 0
        while sent < len(said) and size < PIECE:
            size += len(said[sent].text)
            sent += 1
        if sent < len(said):
            reached = said[sent - 1].place
        elif len(records) == AT_ONCE:
            reached = place_of(records[-1][0].decode())
        else:  # all up to the tail; what was there is gone where the stream ends before it
            reached = max([start, *(place_of(record_id.decode()) for record_id, _ in records[-1:])])
        piece = Piece(reached, b"".join(one.text for one in said[:sent]))
        if piece.text:
            self._pages.keep(watched.job_id, place, piece)
        return piece

    async def _turning_points_before(self, first: Said, job_id: str) -> list[Said]:
        """Return what a long job's stream has lost and the one that is never trimmed still has: its start, its plan."""
        try:
            records = RECORDS.validate_python(await self._redis.xrange(keys.lifecycle(job_id), count=PAGE) or [])
        except RedisError as error:
            if spoiled(error):
                return []
            raise
        return [said for said in _all_said(records) if said.number < first.number and said.place < first.place]

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
        by_key = {keys.events(name).encode(): one for name, one in self._jobs.items() if not one.unreadable}
        if not by_key:
            await asyncio.sleep(WAIT_MS / 1000)
            return
        places: dict[KeyT, StreamIdT] = {key: _id_of(watched.read) for key, watched in by_key.items()}
        try:
            answer = ANSWER.validate_python(await self._redis.xread(places, count=EACH, block=WAIT_MS) or [])
        except RedisError as error:
            if not spoiled(error):
                raise
            await self._put_aside([*by_key.values()])
            return
        for key, records in answer:
            by_key[key].hear(records)
            by_key[key].wake()
            await asyncio.sleep(0)  # between two jobs, others have their turn
        for watched in by_key.values():
            if not watched.over and time.monotonic() >= watched.ask_at:
                await self._ask(watched)

    async def _put_aside(self, jobs: list[Watched]) -> None:
        """Find the jobs whose key is no stream: the others are read without them."""
        for watched in jobs:
            try:
                await self._newest(watched.job_id)
            except Unreadable as error:
                structlog.get_logger("preflight").error(error.reason, job_id=watched.job_id, detail=str(error))
                watched.unreadable = True
                watched.wake()

    async def _ask(self, watched: Watched) -> None:
        """Find out whether the job goes on; RQ decides on a retry a moment after the job has said that it failed."""
        goes_on = await self._goes_on(watched.job_id)
        watched.over, watched.ending = watched.ending and not goes_on, not goes_on
        watched.ask_at = time.monotonic() + (QUIET if goes_on and not watched.has_last_word else AGAIN)
        if watched.over:
            watched.wake()

    def _forget(self) -> None:
        now = time.monotonic()
        gone = [name for name, one in self._jobs.items() if not one.viewers and now - one.left_at > LINGER]
        for job_id in gone:
            del self._jobs[job_id]
            self._pages.forget(job_id)


def place_of(record_id: str) -> Place:
    """Return a stream record's id in numbers; (0, 0) for what is none."""
    milliseconds, _, number = record_id.partition("-")
    if not (milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) <= 20):
        return BEGINNING
    place = int(milliseconds), int(number) if number.isascii() and number.isdigit() and len(number) <= 20 else 0
    return min(place, LARGEST) if max(place) <= max(LARGEST) else BEGINNING


def _id_of(place: Place) -> str:
    """Return a place as Redis writes it."""
    return f"{place[0]}-{place[1]}"


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
