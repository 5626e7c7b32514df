"""Work clock: duration of pieces of work in the long run under a CFS quota.

A process that uses more than its quota runs at full speed until the quota of the period is used up, and then waits for
the next period (sched-bwc.rst). Of short pieces of work most run at full speed, and one waits; how many wait in a short
series depends on where in a period it begins, and on the burst that was saved before. The CPU time of the pieces
depends on neither. Over many periods the kernel grants the quota exactly (docs/decisions.md), so a piece takes
`CPU seconds / quota`, those of spinning threads and loader workers included. Where that is less than its wall time,
the quota does not set the pace, and the wall time counts.
"""

import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .cgroups import Files
from .resources import Quota

_CPU_CLOCK: Final = 2
"""CPUCLOCK_SCHED of clock_getcpuclockid(3): the clock of a process is `~pid << 3 | 2`."""
_QUICK: Final = 4
"""One in so many pieces is quicker than the unthrottled wall time, as estimated where cpu.stat cannot be read."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Pieces of work that were timed."""

    seconds: Sequence[float]
    """Seconds of each piece, in the long run."""
    period_s: float | None = None
    """Period of the quota that set the pace; the pieces of one period share its mean. None: no quota did."""


class WorkClock:
    """Times pieces of work that follow one another; without a quota, by wall time alone."""

    def __init__(self, quota: Quota | None) -> None:
        """Begin the first piece now; `quota` is the one that binds this process."""
        self._quota = quota
        self._walls: list[float] = []
        self._cpus: list[float] = []
        self._throttled = quota and throttled_seconds(quota)
        self._children, self._cpu = (children_seconds(), time.process_time()) if quota else (0.0, 0.0)
        self._wall = time.perf_counter()

    def lap(self) -> None:
        """End a piece, and begin the next."""
        if self._quota is not None:
            cpu = time.process_time()
            self._cpus.append(cpu - self._cpu)
            self._cpu = cpu
        wall = time.perf_counter()  # after the other, which a throttled thread does not return from
        self._walls.append(wall - self._wall)
        self._wall = wall

    def timed(self) -> Timed:
        """Return all pieces so far."""
        if self._quota is None or not self._walls:
            return Timed(tuple(self._walls))
        beside = max(0.0, children_seconds() - self._children) / len(self._walls)
        before, after = self._throttled, throttled_seconds(self._quota)
        throttled_s = None if before is None or after is None else max(0.0, after - before)
        return sustained(self._walls, [cpu + beside for cpu in self._cpus], self._quota, throttled_s)


def sustained(walls: Sequence[float], cpus: Sequence[float], quota: Quota, throttled_s: float | None) -> Timed:
    """Return the long-run seconds of pieces that took `walls` seconds and `cpus` CPU seconds, one or more of them.

    `throttled_s` is what cpu.stat counted meanwhile, summed over processors; None: it cannot be read. What it leaves of
    the wall time is no more than the pieces take at full speed: the quota sets the pace where it grants less than that.

    Wall time still counts where it exceeds what the quota explains by more than a period, which is all that the moment
    of the beginning can make of it: then others in the cgroup use the quota, too.
    """
    granted = [cpu / quota.processors for cpu in cpus]
    unthrottled_s = (
        len(walls) * sorted(walls)[len(walls) // _QUICK] if throttled_s is None else sum(walls) - throttled_s
    )
    if sum(granted) <= unthrottled_s:
        return Timed(tuple(walls))
    shared = max(1.0, (sum(walls) - quota.period_s) / sum(granted))
    return Timed(per_period([shared * each for each in granted], quota.period_s), quota.period_s)


def per_period(seconds: Sequence[float], period_s: float) -> list[float]:
    """Return each piece as the mean of those that fill a period together; an incomplete last one joins that before."""
    groups: list[list[float]] = []
    for each in seconds:
        if not groups or sum(groups[-1]) >= period_s:
            groups.append([])
        groups[-1].append(each)
    if len(groups) > 1 and sum(groups[-1]) < period_s:
        last = groups.pop()
        groups[-1] += last
    return [statistics.fmean(group) for group in groups for _ in group]


def throttled_seconds(quota: Quota) -> float | None:
    """Return for how long the quota held its cgroup back so far; None: its cpu.stat cannot be read."""
    counters = Files(Path("/")).table(quota.path.parent / "cpu.stat")
    if "throttled_usec" in counters:  # v2
        return counters["throttled_usec"] / 1e6
    return counters["throttled_time"] / 1e9 if "throttled_time" in counters else None


def children_seconds() -> float:
    """Return the CPU seconds of the living children of the main thread, which loader workers are."""
    pid, seconds = os.getpid(), 0.0
    with suppress(OSError, ValueError):
        for child in Path(f"/proc/self/task/{pid}/children").read_text().split():
            with suppress(OSError):  # it ended meanwhile
                seconds += time.clock_gettime(~int(child) << 3 | _CPU_CLOCK)
    return seconds
