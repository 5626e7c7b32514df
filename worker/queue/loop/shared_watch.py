"""Watch over shared keys while all is quiet: whether one has appeared that may have a wrong type, and rate limits."""

import time
from typing import Final

from redis import Redis

from preflight.redis import keys
from worker.broker.shared_keys import RedisRetry
from worker.queue.loop.key_existence import KeyExistence

WATCH_INTERVAL: Final = 10.0
"""Seconds between two looks; while jobs run, types are checked with each look of the reaper."""
TYPE_CHECK_INTERVAL: Final = 300.0
"""Seconds between two checks of all types, which is a command for each key."""


class SharedKeysWatch:
    """The shared keys of one queue."""

    def __init__(self, connection: Redis, retry: RedisRetry) -> None:
        """Watch the keys that `retry` expects."""
        self._connection = connection
        self._retry = retry
        self._existence = KeyExistence([keys.RQ_RATE_LIMITS], list(retry.expected))
        self._count: int | None = None
        self._next_look = 0.0
        self._next_check = 0.0
        self.has_rate_limits = False
        """Whether there were rate limits at the last look."""

    def due(self) -> bool:
        """Whether it is time for another look."""
        return time.monotonic() >= self._next_look

    def step(self) -> None:
        """Look, and rename keys of a wrong type where a key has come; raises `redis.exceptions.RedisError`."""
        (self.has_rate_limits,), count = self._existence.read(self._connection.exists(*self._existence.names))
        if self._count is None or count > self._count or time.monotonic() >= self._next_check:
            self._retry.rename_wrong_types()
            self._next_check = time.monotonic() + TYPE_CHECK_INTERVAL
        self._count = count
        self._next_look = time.monotonic() + WATCH_INTERVAL
