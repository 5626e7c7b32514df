"""Which of several keys exist, asked with one command of Redis; and a watch over shared keys while all is quiet."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from redis import Redis

from preflight.redis import keys
from worker.broker.shared_keys import RedisRetry

WATCH_INTERVAL: Final = 10.0
"""Seconds between two looks; while jobs run, types are checked with each look of the reaper."""
TYPE_CHECK_INTERVAL: Final = 300.0
"""Seconds between two checks of all types, which is a command for each key."""


@dataclass(frozen=True, slots=True)
class KeyExistence:
    """The keys of one EXISTS, which counts a key as often as it is named.

    The keys in `single` are distinguished: each is named more often than all that follow it together.
    """

    single: Sequence[str]
    others: Sequence[str]

    @property
    def names(self) -> Sequence[str]:
        """Arguments of EXISTS."""
        return [*(key for key, weight in zip(self.single, self._weights, strict=True) for _ in range(weight)),
                *self.others]  # fmt: skip

    def read(self, count: int) -> tuple[Sequence[bool], int]:
        """Return which of `single` exist, and how many of `others`, from the answer of EXISTS."""
        found = []
        for weight in self._weights:
            exists, count = divmod(count, weight)
            found.append(exists > 0)
        return found, count

    @property
    def _weights(self) -> Sequence[int]:
        lowest = len(self.others) + 1
        return [lowest << power for power in reversed(range(len(self.single)))]


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
