"""The container and its neighbours as a tuner sees them: counters, quota, memory."""

import os
from pathlib import Path
from typing import Protocol

from ..container.counters import SystemCounters
from ..container.interference import Interference
from ..container.resources import MemoryUse, Quota, binding_quota
from ..container.work_clock import children_seconds, throttled_seconds


class ContainerView(Protocol):
    """Readings between two laps; tests simulate them."""

    quota: Quota | None
    """Quota that binds this process, as of the last look; None: none does."""
    processors: int
    """Processors that the scheduler may use."""

    def look(self) -> Interference:
        """Return the interference since the last look."""

    def throttled_s(self) -> float | None:
        """Return for how long the quota has held us back so far; None: there is none, or it cannot be read."""

    def children_s(self) -> float:
        """Return the CPU seconds of living child processes; 0 without a quota, where they are not needed."""

    def memory_share(self) -> float | None:
        """Return the share of the memory limit in use; None: not readable."""


class Container:
    """The container of this process."""

    def __init__(self, root: Path = Path("/"), *, shares: int = 1) -> None:
        """Read files beneath `root`; the quota is one of `shares` of it."""
        self._root = root
        self._shares = shares
        self._counters = SystemCounters(root, shares=shares)
        self._memory = MemoryUse(root)
        self._first = self._last = self._counters.sample()
        self.quota = binding_quota(root, shares=shares)
        self.processors = len(os.sched_getaffinity(0))

    @property
    def memory_limit(self) -> int:
        """Memory limit in bytes."""
        return self._memory.limit

    def look(self) -> Interference:
        """Return the interference since the last look, and read the quota again."""
        before, self._last = self._last, self._counters.sample()
        self.quota = binding_quota(self._root, shares=self._shares)
        return self._last.since(before)

    def since_start(self) -> Interference:
        """Return the interference from the start to the last look."""
        return self._last.since(self._first)

    def throttled_s(self) -> float | None:
        """Return for how long the quota has held us back so far."""
        return None if self.quota is None else throttled_seconds(self.quota)

    def children_s(self) -> float:
        """Return the CPU seconds of living child processes, which loader workers are."""
        return 0.0 if self.quota is None else children_seconds()

    def memory_bytes(self) -> int | None:
        """Return the working set of the container."""
        return self._memory.bytes()

    def memory_share(self) -> float | None:
        """Return the share of the memory limit in use."""
        used = self._memory.bytes()
        return None if used is None else used / self._memory.limit
