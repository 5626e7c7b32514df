"""Cache with a time to live: Redis is read at the same rate for any number of viewers."""

import time
from collections.abc import Callable
from threading import Lock
from typing import Final, Generic, TypeVar

TTL_SECONDS: Final = 0.5

T = TypeVar("T")


class TtlCache(Generic[T]):
    """A value that one thread reads again once it is older than `TTL_SECONDS`."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = Lock()
        self._value: tuple[float, T] | None = None

    def get(self) -> T:
        """Return the value; raises what reading it raises."""
        with self._lock:
            if self._value is None or time.monotonic() - self._value[0] > TTL_SECONDS:
                self._value = time.monotonic(), self._read()
            return self._value[1]
