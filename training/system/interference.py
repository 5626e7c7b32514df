"""Who else is at work on this machine: what the kernel counts, and whether it disturbs what is measured here.

Our own threads look much like a neighbour. They cause CPU pressure where they are more than the processors or the
quota, and OpenMP's spinning counts as work. So no counter speaks alone; noise is one of

- stolen time: the hypervisor gave our processors to another machine;
- a neighbour: our threads waited for a processor *while* others used ours. Waiting without others is our own doing,
  and others without waiting have processors of their own;
- throttling that we did not cause: it set in below our quota, so that others in our cgroup used it, or the quota is
  less than it was.

What shares caches or memory bandwidth, and nothing else, is not seen.

The counters are those of Documentation/filesystems/proc.rst (stat, 1.7), scheduler/sched-stats.rst (schedstat of a
task: ns run, ns waited), accounting/psi.rst, scheduler/sched-bwc.rst and admin-guide/cgroup-v2.rst (cpu.stat).
"""

import os
import re
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from training.system.cgroups import Files, cgroup_mounts, own_cgroup
from training.system.resources import quotas

STOLEN: Final = 0.05
"""Share of our processors' time: half of the deviation that training warns of, and more than one tick in 200 ms."""
WAITED: Final = 0.05
"""Seconds per second that our threads wait: with barriers in each layer, all of them wait for the one that does."""
OTHERS: Final = 0.1
"""Processors in use by others: two ticks in 200 ms, which the kernel's sampling alone does not make up."""
THROTTLED: Final = 0.05
"""Seconds per second, summed over processors; as for waiting."""
FULL: Final = 0.9
"""Share of the quota from which on we have used it up ourselves."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")
"""A second, in the unit of both kinds of stat files."""
_PROCESSOR: Final = re.compile(r"^cpu([0-9]+) ([0-9 ]+)$", re.ASCII | re.MULTILINE)
_SOME: Final = re.compile(r"^some .*total=([0-9]{1,20})$", re.ASCII | re.MULTILINE)
"""In microseconds (psi.rst)."""
_SCHEDSTAT: Final = re.compile(r"[1-9][0-9]* ([0-9]{1,20}) ", re.ASCII)
"""Nanoseconds: ran, waited (sched-stats.rst); all 0 where the kernel does not count them."""
_IDLE: Final = slice(3, 5)
"""Columns of a processor in /proc/stat: idle, iowait; before them user, nice, system, behind them irq, softirq."""
_STEAL: Final = 7
"""Column; guest time, behind it, is part of user time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What happened between two looks, per second of wall time."""

    seconds: float
    """Between the two."""
    processors: int
    """That we may use."""
    own: float
    """CPU seconds of this process and its children; OpenMP's spinning included."""
    others: float
    """CPU seconds of all others on those processors."""
    stolen: float
    """Share of their time that the hypervisor took, 0..1."""
    waited: float | None
    """Seconds that our threads were ready and had no processor, summed; None: the kernel does not tell."""
    pressure: float | None
    """Share of the time in which any task was waiting, 0..1: in our cgroup, else on the machine; None: not told."""
    throttled: float
    """Seconds, summed over processors, for which the quota of a cgroup held its tasks back."""
    quota: float | None
    """Processors of the quota at the second look; None: no limit."""
    lowered: bool
    """Whether the quota is less than when the machine was first looked at."""
    switches: float
    """Times that a thread of ours was made to give way."""

    @property
    def neighbour(self) -> bool:
        """Whether our threads waited while others used our processors."""
        # Whom its quota holds back is counted as waiting, too.
        waited = self.pressure if self.waited is None else self.waited - self.throttled
        return waited is not None and waited >= WAITED and self.others >= OTHERS

    @property
    def held_back(self) -> bool:
        """Whether a quota held us back that we have not used up ourselves, or that was lowered."""
        spare = self.quota is not None and self.own < FULL * self.quota
        return self.throttled >= THROTTLED and (spare or self.lowered)

    @property
    def noisy(self) -> bool:
        """Whether what was measured meanwhile says less about us than about others."""
        return self.stolen >= STOLEN or self.neighbour or self.held_back

    def describe(self) -> str:
        """Return what was seen, as a clause."""
        said = []
        if self.stolen >= STOLEN:
            said.append(f"the hypervisor took {self.stolen:.0%} of the time of {self.processors} processor(s)")
        if self.neighbour:
            pressure = "" if self.pressure is None else f", CPU pressure {self.pressure:.0%}"
            waited = "" if self.waited is None else f" for {self.waited:.2f} s a second"
            said.append(f"others used {self.others:.1f} of {self.processors} processor(s) while our threads waited"
                        f"{waited} ({self.switches:,.0f} forced switches a second{pressure})")  # fmt: skip
        if self.held_back:
            whose = "was lowered" if self.lowered else "others used up"
            said.append(f"a CPU quota that {whose} held us back for {self.throttled:.2f} s a second")
        return " and ".join(said) or "the machine was quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The kernel's counters at one moment; they mean something as a difference of two of one machine."""

    at: float
    """Seconds, of time.perf_counter."""
    busy: Mapping[str, float]
    """Processor that we may use -> CPU seconds of anybody."""
    stolen: Mapping[str, float]
    """The same -> seconds that the hypervisor took."""
    own: float
    """CPU seconds of this process and its children."""
    waited: Mapping[str, float] | None
    """Thread of ours -> seconds that it waited for a processor; None: the kernel does not tell."""
    pressure: float | None
    """Seconds in which any task was waiting; None: the kernel does not tell."""
    throttled: float
    """Seconds, summed over processors."""
    quota: float | None
    """Processors; None: no limit."""
    lowered: bool
    """Whether the quota is less than when the machine was first looked at."""
    switches: int
    """Times that a thread of this process was made to give way."""

    def since(self, before: "Snapshot") -> Noise:
        """Return what happened since `before`, an earlier one."""
        seconds = max(self.at - before.at, 1e-9)
        own = max(0.0, self.own - before.own)
        waited = None if self.waited is None or before.waited is None else _grown(self.waited, before.waited)
        pressure = None if self.pressure is None or before.pressure is None else self.pressure - before.pressure
        return Noise(
            seconds=seconds,
            processors=len(self.busy),
            own=own / seconds,
            others=max(0.0, _grown(self.busy, before.busy) - own) / seconds,
            stolen=_grown(self.stolen, before.stolen) / seconds / max(1, len(self.stolen)),
            waited=None if waited is None else waited / seconds,
            pressure=None if pressure is None else max(0.0, pressure) / seconds,
            throttled=max(0.0, self.throttled - before.throttled) / seconds,
            quota=self.quota,
            lowered=self.lowered,
            switches=(self.switches - before.switches) / seconds,
        )


def _grown(now: Mapping[str, float], before: Mapping[str, float]) -> float:
    """Return by how much the counters that are in both have grown: threads and processors come and go."""
    return sum(max(0.0, value - before[name]) for name, value in now.items() if name in before)


class Machine:
    """Looks at the kernel's counters; a look reads a dozen small files."""

    def __init__(self, root: Path = Path("/"), *, affinity: frozenset[int] | None = None) -> None:
        """Take the files from beneath `root`; `affinity` stands in for sched_getaffinity(2)."""
        self._root = root
        allowed = os.sched_getaffinity(0) if affinity is None else affinity
        self._processors = frozenset(str(number) for number in allowed)
        files = Files(root)
        mounts = cgroup_mounts(files)
        self._cpu = own_cgroup(files, mounts, "cpu")
        self._stats = [level / "cpu.stat" for level in self._cpu.levels if (level / "cpu.stat").is_file()]
        pressures = [level / "cpu.pressure" for level in own_cgroup(files, mounts, "").levels[:1]]
        self._pressures = [path for path in (*pressures, root / "proc/pressure/cpu") if path.is_file()][:1]
        self._quota = self._least_quota(files)

    def look(self) -> Snapshot:
        """Read the counters; no content of the files raises."""
        files = Files(self._root)  # a new one: it collects what was wrong with them
        busy, stolen = self._processors_of(files)
        quota = self._least_quota(files)
        return Snapshot(
            at=time.perf_counter(),
            busy=busy,
            stolen=stolen,
            own=self._own(files),
            waited=self._waited(files),
            pressure=self._pressure(files),
            throttled=self._throttled(files),
            quota=quota,
            lowered=quota is not None and (self._quota is None or quota < self._quota),
            switches=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
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
        """Return what each thread has waited for a processor."""
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

    def _least_quota(self, files: Files) -> float | None:
        found = [float(quota.processors) for quota in quotas(files, self._cpu)]
        return min(found, default=None)


def _fields(files: Files, path: Path) -> tuple[str, int] | None:
    """Return the process id in a stat file, and the ticks that it and its collected children have worked."""
    head, _, tail = (files.text(path) or "").rpartition(")")  # a name may hold anything, a ")" too
    times = tail.split()[11:15]  # utime, stime, cutime, cstime: fields 14 to 17
    if len(times) < 4 or not all(ticks.isdecimal() for ticks in times):
        return None
    return head.partition(" ")[0], sum(int(ticks) for ticks in times)
