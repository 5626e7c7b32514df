"""Load: processors that a job holds, and those that processes hold which run no job of the ledger.

Workers on the same processors that share no state directory see each other by their load, as any other neighbour.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from preflight.container.counters import SystemCounters, process_tree_seconds
from preflight.container.interference import CounterSample

LEAST_SECONDS: Final = 0.5
"""Shortest time over which a load is counted: fifty ticks of the kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Processors in use on average, of those that this process may use."""

    used: float
    """Processors in use by the job's processes."""
    others: float
    """Processors in use by all others, the hypervisor's other machines included."""


class LoadMeter:
    """Counts the load between two looks; a look reads a dozen small files."""

    def __init__(self) -> None:
        """Count nothing before the first look."""
        self._counters: SystemCounters | None = None
        self._last: tuple[CounterSample, float] | None = None
        self._beside: frozenset[str] = frozenset()

    def look(self, processes: Sequence[int], beside: Collection[str]) -> Load | None:
        """Return the load since the last look of a job whose processes descend from `processes`.

        None where less than `LEAST_SECONDS` have passed, and where the jobs that run at the same time, `beside`, are
        others now: a part of the time was theirs.
        """
        counters = self._counters = self._counters or SystemCounters()
        now = counters.sample(), sum(map(process_tree_seconds, processes))
        before, were = self._last, self._beside
        if before is not None and now[0].at - before[0].at < LEAST_SECONDS:
            return None
        self._last, self._beside = now, frozenset(beside)
        if before is None or were != self._beside:
            return None
        found = now[0].since(before[0])
        used = max(0.0, now[1] - before[1]) / found.seconds
        busy = found.own + found.others + found.stolen * found.processors
        return Load(used=used, others=max(0.0, busy - used))
