"""Stream reader: one XREAD over every watched stream."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import structlog
from pydantic import TypeAdapter
from redis.asyncio import Redis
from redis.exceptions import RedisError
from redis.typing import KeyT, StreamIdT

from preflight.redis import keys
from preflight.redis.outage import Outage
from preflight.redis.primary import NotPrimary
from preflight.redis.retry import describe_error
from worker.web.streams.pages import RETRY_SECONDS, Pages
from worker.web.streams.stream_record import RawRecords, UnreadableStream, format_id, is_unreadable
from worker.web.streams.subscription import Subscription

BLOCK_MS: Final = 200
"""Longest wait of one XREAD; a new subscription joins the next one."""
LINGER_SECONDS: Final = 10.0
"""How long a job is read after its last viewer has left: a viewer that reconnects needs no second read."""
MAX_RECORDS_PER_STREAM: Final = 20
"""Records of each stream in one reply."""

XREAD_REPLY: Final = TypeAdapter(list[tuple[bytes, RawRecords]])


class StreamReader:
    """Reads new records into the subscriptions, and finds out which jobs have ended."""

    def __init__(
        self,
        redis: Redis,
        is_active: Callable[[str], Awaitable[bool]],
        subscriptions: dict[str, Subscription],
        pages: Pages,
    ) -> None:
        self._redis = redis
        self._is_active = is_active
        self._subscriptions = subscriptions
        self._pages = pages
        self._has_work = asyncio.Event()
        self._is_closed = False
        self.is_redis_away = False
        """Whether the last read failed."""

    def notify(self) -> None:
        """Wake the reader: there is a subscription."""
        self._has_work.set()

    def close(self) -> None:
        """End `run` with the read under way.

        Cancelling it is not enough: `asyncio.wait_for`, by which redis-py sends, loses a cancellation until Python 3.12
        (cpython issue 86296).
        """
        self._is_closed = True

    async def run(self) -> None:
        """Read until closed or cancelled."""
        outage = Outage(describe_error, at_once=(NotPrimary,))
        while not self._is_closed:
            if not self._subscriptions:
                self._has_work.clear()
                await self._has_work.wait()
            try:
                await self._read()
                self.is_redis_away = False
                outage.note_answer()
            except RedisError as error:
                self.is_redis_away = True
                outage.note_failure(error, "read events")
                await asyncio.sleep(RETRY_SECONDS)

    async def _read(self) -> None:
        self._drop_abandoned()
        by_key = {
            keys.events(one.job_id).encode(): one for one in self._subscriptions.values() if not one.is_unreadable
        }
        if not by_key:
            await asyncio.sleep(BLOCK_MS / 1000)
            return
        ids: dict[KeyT, StreamIdT] = {key: format_id(one.last_read) for key, one in by_key.items()}
        try:
            await self._take(by_key, await self._redis.xread(ids, count=MAX_RECORDS_PER_STREAM, block=BLOCK_MS))
        except RedisError as error:
            if not is_unreadable(error):
                raise
            await self._read_apart(by_key)
        for subscription in by_key.values():
            if not subscription.has_ended and time.monotonic() >= subscription.check_at:
                # RQ decides on a retry a moment after the event of the failure, so one check is not enough.
                await self._check(subscription)

    async def _check(self, subscription: Subscription) -> None:
        """Find out whether the job may have more events."""
        try:
            is_active = await self._is_active(subscription.job_id)
        except RedisError:
            raise
        except Exception as error:  # what one job's keys hold ends no other job's events
            self._give_up(subscription, f"{type(error).__name__}: {ascii(str(error))[:200]}")
        else:
            subscription.record_check(is_active=is_active)

    async def _take(self, by_key: Mapping[bytes, Subscription], reply: object) -> None:
        """Hand new records to their subscriptions."""
        for key, raw in XREAD_REPLY.validate_python(reply or []):
            if raw:
                by_key[key].add(raw)
                by_key[key].notify()
                await asyncio.sleep(0)  # other tasks run between two jobs

    async def _read_apart(self, by_key: Mapping[bytes, Subscription]) -> None:
        """Read each stream by itself: this finds those that cannot be read, and reads the others without them."""
        for key, subscription in by_key.items():
            try:
                await self._take(by_key, await self._redis.xread({key: format_id(subscription.last_read)}, count=1))
            except RedisError as error:
                if not is_unreadable(error):
                    raise
                self._give_up(subscription, str(UnreadableStream(subscription.job_id)))

    def _give_up(self, subscription: Subscription, why: str) -> None:
        """End the streams of a job's viewers with a problem."""
        structlog.get_logger("preflight").error(UnreadableStream.reason, job_id=subscription.job_id, message=why)
        subscription.is_unreadable = True
        subscription.notify()

    def _drop_abandoned(self) -> None:
        before = time.monotonic() - LINGER_SECONDS
        abandoned = [one.job_id for one in self._subscriptions.values() if not one.viewers and one.left_at < before]
        for job_id in abandoned:
            del self._subscriptions[job_id]
            self._pages.drop(job_id)
