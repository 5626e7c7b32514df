"""Broadcaster: fan-out of job events to any number of viewers.

The newest records of a watched job are kept in memory, and so are pages of older ones, both within a budget of bytes. A
viewer that is further behind reads from Redis.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

from redis.asyncio import Redis

from worker.state.supervision import Supervisor
from worker.web.streams.pages import MAX_CONCURRENT_READS, Pages
from worker.web.streams.reader import StreamReader
from worker.web.streams.stream_record import MIN_ID, UnreadableStream, newest_record, parse_id, parse_records
from worker.web.streams.subscription import Subscription

KEEP_ALIVE_SECONDS: Final = 10.0
"""Silence after which a viewer is sent a comment."""
MAX_SUBSCRIPTIONS: Final = 200
"""Jobs watched at once by all viewers together."""


class TooManySubscriptions(Exception):
    """No more jobs can be watched at once."""

    reason: Final = "too_many_watched"

    def __init__(self) -> None:
        super().__init__(f"events of {MAX_SUBSCRIPTIONS} jobs are followed already; close some and ask again")


class Broadcaster:
    """Subscriptions to jobs, filled by one reader."""

    def __init__(self, redis: Redis, is_active: Callable[[str], Awaitable[bool]]) -> None:
        """Read from `redis`; `is_active` returns whether more events of a job may come."""
        self._redis = redis
        self._subscriptions: dict[str, Subscription] = {}
        self._pages = Pages(redis)
        self._reader = StreamReader(redis, is_active, self._subscriptions, self._pages)
        self._lookups = asyncio.Semaphore(MAX_CONCURRENT_READS)
        self._task: asyncio.Task[None] | None = None
        self.is_closing = False

    def start(self, supervisor: Supervisor) -> None:
        """Begin to read; `supervisor` begins again should the reader end."""
        self._task = supervisor.start_task("stream reader", self._reader.run)

    async def close(self) -> None:
        """Disconnect every viewer and stop the reader."""
        self.disconnect_all()
        self._reader.close()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def disconnect_all(self) -> None:
        """End every viewer's stream."""
        self.is_closing = True
        for subscription in self._subscriptions.values():
            subscription.notify()

    @property
    def viewers(self) -> int:
        """Number of viewers of all jobs."""
        return sum(subscription.viewers for subscription in self._subscriptions.values())

    @property
    def is_redis_away(self) -> bool:
        """Whether Redis did not answer the last read."""
        return self._reader.is_redis_away

    async def subscribe(self, job_id: str) -> Subscription:
        """Return the subscription to a job, to be followed at once.

        Raises:
            TooManySubscriptions: `MAX_SUBSCRIPTIONS` other jobs are watched.
            UnreadableStream: the key of its events is no stream.
            redis.exceptions.RedisError: Redis did not answer.
        """
        if (found := self._find(job_id)) is not None:
            return found
        async with self._lookups:
            newest = await newest_record(self._redis, job_id)
        if (found := self._find(job_id)) is not None:  # another viewer came meanwhile
            return found
        if job_id not in self._subscriptions and len(self._subscriptions) >= MAX_SUBSCRIPTIONS:
            raise TooManySubscriptions
        last = parse_id(newest[0][0].decode()) if newest else MIN_ID
        has_terminal = any(record.is_terminal for record in parse_records(newest))
        self._pages.drop(job_id)
        subscription = Subscription(job_id, last_read=last, start=last, has_terminal_event=has_terminal)
        self._subscriptions[job_id] = subscription
        self._reader.notify()
        return subscription

    async def follow(self, subscription: Subscription, after: str, *, thin: bool) -> AsyncIterator[bytes]:
        """Yield the events after a record until the job has ended; `b""` as keep-alive.

        Args:
            subscription: a fresh result of `subscribe`.
            after: id of a stream record, `0` for all that are kept.
            thin: whether older events are as many as a chart needs.

        Raises:
            UnreadableStream: its key is no stream any more.
            redis.exceptions.RedisError: Redis did not say how many events there are.
        """
        subscription.viewers += 1
        try:
            position = parse_id(after)
            stride = await self._pages.stride(subscription.job_id) if thin else 1
            while not self.is_closing:
                changed = subscription.changed
                if subscription.is_unreadable:
                    raise UnreadableStream(subscription.job_id)
                is_behind = position < subscription.start
                if is_behind:
                    chunk = await self._pages.get(subscription, position, stride)
                else:
                    chunk = subscription.records_after(position)
                if chunk is not None:
                    position = chunk.last
                    if chunk.text:
                        yield chunk.text
                elif is_behind:
                    yield b""
                elif subscription.has_ended:
                    return
                elif not await _is_set_within(changed, KEEP_ALIVE_SECONDS):
                    yield b""
        finally:
            subscription.viewers -= 1
            subscription.left_at = time.monotonic()

    def _find(self, job_id: str) -> Subscription | None:
        """Return a subscription in use; one that has ended or is unreadable is made again."""
        found = self._subscriptions.get(job_id)
        return None if found is None or found.has_ended or found.is_unreadable else found


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
