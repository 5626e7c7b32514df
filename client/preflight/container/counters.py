"""System counters: the kernel's counters of processors, our threads and the quota.

See Documentation/filesystems/proc.rst (stat, 1.7), scheduler/sched-stats.rst (schedstat of a task: ns run, ns waited),
accounting/psi.rst, scheduler/sched-bwc.rst and admin-guide/cgroup-v2.rst (cpu.stat).
"""

import os
import re
import resource
import time
from pathlib import Path
from typing import Final

from .cgroups import Files, cgroup_mounts, own_cgroup
from .interference import CounterSample
from .resources import Quota, quotas

_TICKS: Final = os.sysconf("SC_CLK_TCK")
"""Ticks per second, in which both kinds of stat files count."""
_PROCESSOR: Final = re.compile(r"^cpu([0-9]+) ([0-9 ]+)$", re.ASCII | re.MULTILINE)
_SOME: Final = re.compile(r"^some .*total=([0-9]{1,20})$", re.ASCII | re.MULTILINE)
"""Pattern of the microseconds in which some task waited (psi.rst)."""
_SCHEDSTAT: Final = re.compile(r"[1-9][0-9]* ([0-9]{1,20}) ", re.ASCII)
"""Nanoseconds: ran, waited (sched-stats.rst); all 0 where the kernel does not count them."""
_IDLE: Final = slice(3, 5)
"""Columns of a processor in /proc/stat: idle, iowait; before them user, nice, system, behind them irq, softirq."""
_STEAL: Final = 7
"""Column of stolen time; guest time, behind it, is part of user time."""


class SystemCounters:
    """Samples the kernel's counters; a sample reads a dozen small files."""

    def __init__(self, root: Path = Path("/"), *, affinity: frozenset[int] | None = None, shares: int = 1) -> None:
        """Take the files from beneath `root`; the arguments are those of `resources.detect`."""
        self._root = root
        self._shares = shares
        allowed = os.sched_getaffinity(0) if affinity is None else affinity
        self._processors = frozenset(str(number) for number in allowed)
        files = Files(root)
        mounts = cgroup_mounts(files)
        self._cpu = own_cgroup(files, mounts, "cpu")
        self._stats = [level / "cpu.stat" for level in self._cpu.levels if (level / "cpu.stat").is_file()]
        pressures = [level / "cpu.pressure" for level in own_cgroup(files, mounts, "").levels[:1]]
        self._pressures = [path for path in (*pressures, root / "proc/pressure/cpu") if path.is_file()][:1]
        least = self._least_quota(files)
        self._quota = None if least is None else float(least.processors)

    def sample(self) -> CounterSample:
        """Read the counters; no content of the files raises."""
        files = Files(self._root)  # a new one, as it collects their faults
        busy, stolen = self._processors_of(files)
        least = self._least_quota(files)
        quota = None if least is None else float(least.processors)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return CounterSample(
            at=time.perf_counter(),
            busy=busy,
            stolen=stolen,
            own=self._own(files),
            waited=self._waited(files),
            pressure=self._pressure(files),
            throttled=self._throttled(files),
            quota=quota,
            period_s=0.0 if least is None else least.period_s,
            lowered=quota is not None and (self._quota is None or quota < self._quota),
            switches=usage.ru_nivcsw,
            reread=usage.ru_majflt,
        )

    def _processors_of(self, files: Files) -> tuple[dict[str, float], dict[str, float]]:
        busy, stolen = {}, {}
        for name, columns in _PROCESSOR.findall(files.text(self._root / "proc/stat") or ""):
            if name in self._processors:
                ticks = [int(column) for column in columns.split()]
                busy[name] = sum(ticks[: _IDLE.start] + ticks[_IDLE.stop : _STEAL]) / _TICKS
                stolen[name] = sum(ticks[_STEAL : _STEAL + 1]) / _TICKS
        return busy, stolen

    def _own(self, files: Files) -> float:
        """Return CPU seconds of this process, of the children it has collected, and of those that live."""
        own = _fields(files, self._root / "proc/self/stat")
        if own is None:
            return 0.0
        pid, ticks = own
        # Loader workers are children of the main thread.
        for child in (files.text(self._root / f"proc/self/task/{pid}/children") or "").split():
            found = _fields(files, self._root / f"proc/{child}/stat")
            ticks += found[1] if found else 0
        return ticks / _TICKS

    def _waited(self, files: Files) -> dict[str, float] | None:
        """Return the seconds that each thread has waited for a processor; None: the kernel does not tell."""
        waited = {}
        try:
            threads = list((self._root / "proc/self/task").iterdir())
        except OSError:
            return None
        for thread in threads:
            match = _SCHEDSTAT.match(files.text(thread / "schedstat") or "")
            if match:
                waited[thread.name] = int(match[1]) / 1e9
        return waited or None

    def _pressure(self, files: Files) -> float | None:
        for path in self._pressures:
            match = _SOME.search(files.text(path) or "")
            if match:
                return int(match[1]) / 1e6
        return None

    def _throttled(self, files: Files) -> float:
        tables = [files.table(path) for path in self._stats]
        # v1 counts nanoseconds, v2 microseconds.
        return sum(table.get("throttled_time", 0) / 1e9 + table.get("throttled_usec", 0) / 1e6 for table in tables)

    def _least_quota(self, files: Files) -> Quota | None:
        return min(quotas(files, self._cpu, self._shares), key=lambda quota: quota.processors, default=None)


def process_tree_seconds(process: int, root: Path = Path("/")) -> float:
    """Return the CPU seconds of a process and its descendants, and of those that they have collected."""
    files = Files(root)  # separate: processes that end meanwhile are no warning
    directory = root / "proc" / str(process)
    own = _fields(files, directory / "stat")
    children = files.text(directory / "task" / str(process) / "children") or ""
    below = sum(process_tree_seconds(int(child), root) for child in children.split() if child.isdecimal())
    return below + (own[1] / _TICKS if own else 0.0)


def _fields(files: Files, path: Path) -> tuple[str, int] | None:
    """Return the process id in a stat file, and the ticks that it and its collected children have worked."""
    head, _, tail = (files.text(path) or "").rpartition(")")  # a name may hold anything, a ")" too
    times = tail.split()[11:15]  # utime, stime, cutime, cstime: fields 14 to 17
    if len(times) < 4 or not all(ticks.isdecimal() for ticks in times):
        return None
    return head.partition(" ")[0], sum(int(ticks) for ticks in times)
