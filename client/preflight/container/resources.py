"""Limits of this container: processor time and memory, read from cgroup v1, v2 or a mix of both.

The rules are the kernel's: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and
scheduler/sched-bwc.rst for the limits, filesystems/proc.rst for mountinfo, cgroup_namespaces(7) for paths.
A limit binds everything below it, so each is looked up from the process's own cgroup to the topmost visible
one, and the least counts. Nothing found in a file is an error: detection must work in any container.
"""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final, NamedTuple

from . import cgroups
from .cgroups import CHILD, Cgroup, Files, cgroup_mounts, memory_limits, own_cgroup, shown

SHORT: Final = 0.85
"""Share of the memory limit above which memory is short: the rest is for evaluation and checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Processors and memory that the process may use, and the files that say so."""

    cores: int
    """Whole processors to plan for: max(1, floor(min(len(affinity), quota)))."""
    quota: float | None
    """Processor seconds per second that the CFS bandwidth limit allows; None: unlimited."""
    memory_bytes: int
    """The budget: the least of the cgroup limits and MemTotal."""
    affinity: frozenset[int]
    """Processor numbers the scheduler may use (sched_getaffinity(2)); a cpuset is already applied in it."""
    working_set_bytes: int | None
    """Memory of the nearest cgroup that shows it, less its page cache (reclaimable); None: not readable."""
    cores_source: str
    """The file that holds the quota where it decides, else "affinity"."""
    memory_source: str
    """The file that holds the budget, else "MemTotal"."""
    warnings: tuple[str, ...]
    """One sentence for each thing that was not as expected; empty on a healthy system."""
    shares: int = 1
    """Workers among which the container is divided; quota, memory and working set are those of one share."""

    @property
    def share(self) -> "Share | None":
        """The share that these resources are; None: they are the whole container."""
        return Share(of=self.shares, memory_bytes=self.memory_bytes) if self.shares > 1 else None

    @property
    def headroom_bytes(self) -> int:
        """Bytes of the budget not in use, at least 0; the whole budget where the working set is unknown."""
        return max(0, self.memory_bytes - (self.working_set_bytes or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The share of a container that a worker has, for its child processes."""

    of: int
    """Number of equal shares."""
    memory_bytes: int


def detect(
    root: Path = Path("/"), *, affinity: frozenset[int] | None = None, mem_total: int | None = None, shares: int = 1
) -> Resources:
    """Read the limits of the calling process. No content of the files raises.

    `root` is the directory beneath which every file is read, `affinity` stands in for sched_getaffinity(2)
    and `mem_total` (bytes) for MemTotal of /proc/meminfo. Quota and memory are divided by `shares`; the processors
    of a share are those that the process may use.
    """
    files = Files(root)
    allowed = frozenset(os.sched_getaffinity(0)) if affinity is None else affinity
    total = cgroups.mem_total(files) if mem_total is None else mem_total
    mounts = cgroup_mounts(files)
    memory = own_cgroup(files, mounts, "memory")

    limits = quotas(files, own_cgroup(files, mounts, "cpu"), shares)
    quota = min(limits, key=lambda quota: quota.processors, default=None)
    cores, cores_source = len(allowed), "affinity"
    if quota is not None and quota.processors < cores:
        cores, cores_source = math.floor(quota.processors), shown(quota.path)

    budget, memory_source = total, "MemTotal"
    for limit, path in memory_limits(files, memory):
        if limit < budget:
            budget, memory_source = limit, shown(path)

    return Resources(
        cores=max(1, cores),
        quota=None if quota is None else float(quota.processors),
        memory_bytes=budget // shares,
        affinity=allowed,
        working_set_bytes=_used_share(root, budget, _working_set(files, memory), shares),
        cores_source=cores_source,
        memory_source=memory_source,
        warnings=tuple(dict.fromkeys(files.warnings)),
        shares=shares,
    )


def _used_share(root: Path, budget: int, used: int | None, shares: int) -> int | None:
    """Return the bytes of a share in use: by this process and its descendants, or for which others leave no room.

    `budget` and `used` are those of the whole container.
    """
    if shares == 1:
        return used
    missing = budget // shares - (budget - (used or 0))
    return max(process_tree_bytes(os.getpid(), root), missing)


def process_tree_bytes(process: int, root: Path = Path("/")) -> int:
    """Return the memory of a process and its descendants, without mapped files.

    Pages that they share count once, but twice where the kernel does not tell each process's part (before 5.9).
    """
    files = Files(root)  # separate: processes that end meanwhile are no warning
    directory = root / "proc" / str(process)
    parts = _PSS.findall(files.text(directory / "smaps_rollup") or "")
    own = sum(map(int, parts or _RSS.findall(files.text(directory / "status") or ""))) << 10
    children = files.text(directory / "task" / str(process) / "children") or ""
    return own + sum(process_tree_bytes(int(child), root) for child in children.split() if child.isdecimal())


def status_sizes(process: int | str = "self") -> dict[str, int]:
    """Return the sizes in a process's status, such as `VmHWM` and `RssAnon`, in bytes (proc.rst, 1.1).

    Raises:
        OSError: there is no such process.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    sizes = (line.partition(":") for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) << 10 for name, _, value in sizes}


class MemoryUse:
    """Reads the memory in use and its limit repeatedly; each reading takes two small files."""

    def __init__(self, root: Path = Path("/"), *, mem_total: int | None = None, share: Share | None = None) -> None:
        """Find the limit, that of a `share` where there is one; else as `detect`."""
        files = Files(root)
        self._root = root
        self._share = share
        self.limit = detect(root, mem_total=mem_total).memory_bytes if share is None else share.memory_bytes
        """The limit in bytes, as it was last read."""
        self._cgroup = own_cgroup(files, cgroup_mounts(files), "memory")
        self._total = cgroups.mem_total(files) if mem_total is None else mem_total

    def read_limit(self) -> None:
        """Read the limit again: somebody may have changed that of the container.

        Where it was lowered, memory in use is from now on that of the level that has it, with all processes there.
        """
        least, level = self._total, None
        for limit, path in memory_limits(Files(self._root), self._cgroup):
            if limit < least:
                least, level = limit, path.parent
        limit = least // (self._share.of if self._share else 1)
        if level is not None and limit < self.limit:
            levels = self._cgroup.levels
            self._cgroup = self._cgroup._replace(levels=levels[levels.index(level) :])
        self.limit = limit

    def container_bytes(self) -> int | None:
        """Return the working set of the container, where `bytes` is that of a child's own cgroup; else as `bytes`."""
        levels = [level for level in self._cgroup.levels if CHILD.fullmatch(level.name) is None]
        if self._share is not None or len(levels) == len(self._cgroup.levels):
            return self.bytes()
        return _working_set(Files(self._root), self._cgroup._replace(levels=levels))

    def bytes(self) -> int | None:
        """Return the working set, of a share that of the parent of this process; None: not readable."""
        if self._share is not None:
            return process_tree_bytes(os.getppid(), self._root)
        return _working_set(Files(self._root), self._cgroup)


_DEFAULT_PERIOD_US = 100_000
"""Period of a cpu.max without one (cgroup-v2.rst)."""
_RSS = re.compile(r"^Rss(?:Anon|Shmem):\s+([0-9]{1,20}) kB$", re.ASCII | re.MULTILINE)
"""Resident memory in /proc/<pid>/status that is not page cache (proc.rst, 1.1)."""
_PSS = re.compile(r"^Pss_(?:Anon|Shmem):\s+([0-9]{1,20}) kB$", re.ASCII | re.MULTILINE)
"""The same in smaps_rollup, with pages divided among the processes that share them."""
_CPU_MAX = re.compile(r"\s*(max|[0-9]{1,20})(?:\s+([0-9]{1,20}))?\s*", re.ASCII)


class Quota(NamedTuple):
    """A CFS bandwidth limit."""

    processors: Fraction  # exact, so that its floor is
    path: Path
    period_s: float


@dataclass(frozen=True, slots=True)
class Throttling:
    """Periods of a quota, from cpu.stat (sched-bwc.rst)."""

    periods: int = 0
    throttled: int = 0

    @classmethod
    def read(cls, quota: Quota | None) -> "Throttling":
        """Return the counters of a quota's cgroup; zeros without one."""
        if quota is None:
            return cls()
        table = Files(Path("/")).table(quota.path.parent / "cpu.stat")
        return cls(table.get("nr_periods", 0), table.get("nr_throttled", 0))

    def share_since(self, before: "Throttling") -> float:
        """Return the share of the periods since then in which the quota was used up."""
        periods = self.periods - before.periods
        return (self.throttled - before.throttled) / periods if periods > 0 else 0.0


def binding_quota(
    root: Path = Path("/"), *, affinity: frozenset[int] | None = None, shares: int = 1
) -> Quota | None:  # fmt: skip
    """Return the least quota of this process's cgroup; None: it is not less than the processors, or there is none.

    The arguments are those of `detect`.
    """
    files = Files(root)
    allowed = os.sched_getaffinity(0) if affinity is None else affinity
    found = quotas(files, own_cgroup(files, cgroup_mounts(files), "cpu"), shares)
    return min((quota for quota in found if quota.processors < len(allowed)), key=lambda each: each[0], default=None)


def quotas(files: Files, cgroup: Cgroup, shares: int = 1) -> Iterator[Quota]:
    """Yield one of `shares` of the quota of each level that has one, for a `cgroup` of the cpu controller."""
    for level in cgroup.levels:
        path = level / ("cpu.cfs_quota_us" if cgroup.version == 1 else "cpu.max")
        quota, period = _cfs_quota(files, path) if cgroup.version == 1 else _cpu_max(files, path)
        if quota is None or period is None:
            continue
        if quota > 0 and period > 0:
            yield Quota(Fraction(quota, period) / shares, path, period / 1e6)
        else:
            files.warn(path, f"is ignored, {quota} us in {period} us is no quota")


def _cfs_quota(files: Files, path: Path) -> tuple[int | None, int | None]:
    """Return v1's quota, None for no limit, and period, both in us (sched-bwc.rst)."""
    quota, period = files.integer(path), files.integer(path.parent / "cpu.cfs_period_us")
    return None if quota is None or quota <= 0 else quota, period


def _cpu_max(files: Files, path: Path) -> tuple[int | None, int]:
    """Return v2's quota, None for no limit, and period, both in us (cgroup-v2.rst)."""
    text = files.text(path)
    if text is None:
        return None, _DEFAULT_PERIOD_US
    match = _CPU_MAX.fullmatch(text)
    if match is None:
        files.warn(path, f"is ignored, not a quota and a period: {text[:40]!a}")
        return None, _DEFAULT_PERIOD_US
    return None if match[1] == "max" else int(match[1]), int(match[2] or _DEFAULT_PERIOD_US)


def _working_set(files: Files, cgroup: Cgroup) -> int | None:
    """Measure the bytes in use that are not page cache, at the nearest level that shows them."""
    usage_name, prefix = "memory.current", ""
    if cgroup.version == 1:
        usage_name, prefix = "memory.usage_in_bytes", "total_"  # total_: with descendants, as usage is
    for level in cgroup.levels:
        usage, stat = files.integer(level / usage_name), files.table(level / "memory.stat")
        inactive, active = stat.get(f"{prefix}inactive_file"), stat.get(f"{prefix}active_file")
        if usage is not None and inactive is not None and active is not None:
            return max(0, usage - inactive - active)  # the files are read one after the other
    return None
