"""Limits that change while a process runs: `docker update`, a quota or a cpuset that somebody writes."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from preflight.container.cgroups import Files, cgroup_mounts, own_cgroup
from preflight.container.resources import MemoryUse, quotas

LOOK_SECONDS: Final = 1.0
"""Between two looks; each reads two small files for each level of cgroups."""
LEAST_CHANGE: Final = 0.01
"""Processors by which the limit must change: less is rounding of a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorChange:
    """How many processors a process may use, before and after a change: a share of its quota, at most its affinity."""

    before: float
    after: float

    def slowdown(self, threads_before: int, threads_after: int) -> float:
        """Return how many times as long a step takes afterwards, by the processors that the threads can keep busy."""
        return min(threads_before, self.before) / min(threads_after, self.after)

    def fitting(self, threads: int) -> int:
        """Return the threads that go on: those without a processor end, unless there were more of them on purpose."""
        return threads if threads > math.ceil(self.before) else min(threads, max(1, math.ceil(self.after)))

    def describe(self) -> str:
        """Return the change as a clause."""
        return f"the container's limit was changed from {self.before:.4g} to {self.after:.4g} CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCut:
    """A memory limit that was lowered, in bytes."""

    before: int
    after: int
    used: int | None
    """Bytes in use; None: not readable."""

    def describe(self) -> str:
        """Return the change as a clause."""
        used = "" if self.used is None else f", of which {self.used >> 20:,} MiB are in use"
        return f"the memory limit was lowered from {self.before >> 20:,} to {self.after >> 20:,} MiB{used}"


class LimitWatch:
    """Looks once a second whether the limits of this process are what they were."""

    def __init__(
        self, memory: MemoryUse, root: Path = Path("/"), *, shares: int = 1,
        affinity: Callable[[], int] = lambda: len(os.sched_getaffinity(0)),
    ) -> None:  # fmt: skip
        """Take the limits as they are now, of one of `shares`; files are read beneath `root`."""
        files = Files(root)
        self._root = root
        self._memory = memory
        self._shares = shares
        self._affinity = affinity
        self._cgroup = own_cgroup(files, cgroup_mounts(files), "cpu")
        self._processors = self._look()
        self._looked = time.monotonic()

    def due(self) -> bool:
        """Whether to look again."""
        return time.monotonic() - self._looked >= LOOK_SECONDS

    def processors(self) -> ProcessorChange | None:
        """Look at quota and affinity; return what has changed since the last look."""
        self._looked, before, self._processors = time.monotonic(), self._processors, self._look()
        if abs(self._processors - before) < LEAST_CHANGE:
            return None
        return ProcessorChange(before=before, after=self._processors)

    def memory(self) -> MemoryCut | None:
        """Read the memory limit again; return by how much it was lowered, None where it was not."""
        before = self._memory.limit
        self._memory.read_limit()
        if self._memory.limit >= before:
            return None
        return MemoryCut(before=before, after=self._memory.limit, used=self._memory.bytes())

    def _look(self) -> float:
        found = [float(quota.processors) for quota in quotas(Files(self._root), self._cgroup, self._shares)]
        return min([float(self._affinity()), *found])
