"""Reads that many requests share: a bounded number at once, each kept for a moment.

Threads are few, and a request that waits for one must not hold another: `Slots` lets requests wait without a thread,
and refuses them where too many wait. Each kind of read has its own slots: a slow search delays no other request.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from worker.web.routes.errors import ApiError

TTL_SECONDS: Final = 0.5
PATIENCE: Final = 2.0
"""A value is kept this many times as long as it took to read: slow reads take a third of the time at most."""
MAX_TTL_SECONDS: Final = 10.0

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True)
class _Entry(Generic[T]):
    lock: Lock = field(default_factory=Lock)
    value: tuple[T] | None = None
    expires: float = 0.0
    readers: int = 0


class TtlCache(Generic[K, T]):
    """Values by question, each read by one thread at a time, and forgotten once it is too old to be an answer."""

    def __init__(self, read: Callable[[K], T]) -> None:
        self._read = read
        self._lock = Lock()
        self._entries: dict[K, _Entry[T]] = {}

    def get(self, question: K) -> T:
        """Return the value; raises what reading it raises."""
        with self._lock:
            now = time.monotonic()
            for other in [key for key, one in self._entries.items() if not one.readers and one.expires <= now]:
                del self._entries[other]
            entry = self._entries.setdefault(question, _Entry())
            entry.readers += 1
        try:
            with entry.lock:
                began = time.monotonic()
                if entry.value is None or entry.expires <= began:
                    entry.value = None  # the old one makes room for the new one
                    entry.value = (self._read(question),)
                    now = time.monotonic()
                    entry.expires = now + min(MAX_TTL_SECONDS, max(TTL_SECONDS, PATIENCE * (now - began)))
                return entry.value[0]
        finally:
            with self._lock:
                entry.readers -= 1


class Slots:
    """A number of threads for one kind of read, and of requests that wait for them."""

    def __init__(self, threads: int, waiting: int) -> None:
        self._limiter = CapacityLimiter(threads)
        self._most = threads + waiting
        self._taken = 0

    async def run(self, action: Callable[[], T]) -> T:
        """Return the result of `action`, run in a thread; raises `ApiError` where too many wait."""
        if self._taken >= self._most:
            message = f"{self._most} requests of this kind are being answered already; ask again in a second"
            raise ApiError(429, "too_busy", message)
        self._taken += 1
        try:
            return await to_thread.run_sync(action, limiter=self._limiter)
        finally:
            self._taken -= 1
