"""Limits that change while a process runs: `docker update`, a quota or a cpuset that somebody writes."""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from preflight.container.cgroups import Files, cgroup_mounts, own_cgroup
from preflight.container.counters import SystemCounters
from preflight.container.interference import CounterSample
from preflight.container.resources import MemoryUse, quotas
from training.prediction import Speeds, slowdown

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks; each reads two small files for each level of cgroups."""
LEAST_CHANGE: Final = 0.01
"""Processors by which the limit must change: less is rounding of a share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedThreads:
    """Threads of a training that shares the processors with others of the same host."""

    file: Path
    """File with the number of its processors, which changes when others come and go; 0: all."""
    threads: int
    """Threads of the training when it is alone."""
    speeds: Speeds = ()

    def now(self) -> int:
        """Return the threads that it may have now; a file that cannot be read leaves it all."""
        return min(self._processors() or self.threads, self.threads)

    def is_divided(self) -> bool:
        """Whether others have a part of the processors now."""
        return self._processors() > 0

    def _processors(self) -> int:
        try:
            return max(0, int(self.file.read_text()))
        except (OSError, ValueError):
            return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorChange:
    """Processors that a process may use, before and after a change: a share of its quota, at most its affinity."""

    before: float
    after: float
    shared: "SharedThreads | None" = None
    """Set where another training came or went, whose threads are taken or given up at once; None: a limit changed."""

    def slowdown(self, threads_before: int, threads_after: int) -> float:
        """Return how many times as long a step takes afterwards, by the processors that the threads can keep busy."""
        if self.shared is not None:
            return slowdown(self.shared.speeds, threads_before, threads_after)
        return min(threads_before, self.before) / min(threads_after, self.after)

    def fitting(self, threads: int) -> int:
        """Return the threads that remain: those without a processor end, unless there were more of them on purpose."""
        if self.shared is not None:
            return max(1, int(self.after))
        return threads if threads > math.ceil(self.before) else min(threads, max(1, math.ceil(self.after)))

    def describe(self) -> str:
        """Return the change as a clause."""
        if self.shared is not None:
            why = "another training began" if self.after < self.before else "another training ended"
            number = f"{self.after:.4g} processor" + (" is" if self.after == 1 else "s are")
            return f"{why}, so that {number} for this one instead of {self.before:.4g}"
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
    """Looks once a second whether the limits of this process have changed."""

    def __init__(
        self, memory: MemoryUse, root: Path = Path("/"), *, shares: int = 1,
        affinity: Callable[[], int] = lambda: len(os.sched_getaffinity(0)), shared: SharedThreads | None = None,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        """Take the limits as they are now, of one of `shares`; files are read beneath `root`.

        `shared`: other trainings may come and go; the training has `threads` now, by default what they leave.
        """
        self._shared = shared
        self._threads = 0 if shared is None else threads or shared.now()
        self._more = 0
        """Threads that the last look found, where they are more than before."""
        self._counters: SystemCounters | None = None
        self._counted: CounterSample | None = None
        """Counters when the last look found more threads."""
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
        """Look at quota and affinity; return the change since the last look."""
        self._looked, before, self._processors = time.monotonic(), self._processors, self._look()
        if abs(self._processors - before) < LEAST_CHANGE:
            return None
        return ProcessorChange(before=before, after=self._processors)

    def shared(self) -> ProcessorChange | None:
        """Look whether another training has come or gone.

        Threads are given up at once, and taken at the second look: often the next job begins in between. Processors
        that others held from the first look to the second are not taken; the tuner races them once they are free.
        """
        if self._shared is None:
            return None
        before, found = self._threads, self._shared.now()
        if found > before:
            self._counters = self._counters or SystemCounters(self._root, shares=self._shares)
            is_first, self._more = found != self._more, found
            counted, self._counted = self._counted, self._counters.sample()
            if is_first or counted is None:
                return None
            free = self._counted.since(counted).free
            found = found if free is None else max(before, min(found, free))
        else:
            self._more = 0
        if found == before:
            return None
        self._threads, self._more = found, 0
        return ProcessorChange(before=before, after=found, shared=self._shared)

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
