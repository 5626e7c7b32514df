"""What this container grants: processor time and memory, read from cgroup v1, v2 or a mix of both.

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
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the process may use, and which file says so."""

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

    @property
    def headroom_bytes(self) -> int:
        """Bytes of the budget not in use, at least 0; the whole budget where the working set is unknown."""
        return max(0, self.memory_bytes - (self.working_set_bytes or 0))


def detect(
    root: Path = Path("/"), *, affinity: frozenset[int] | None = None, mem_total: int | None = None
) -> Resources:
    """Read the limits of the calling process. No content of the files raises.

    `root` is the directory beneath which every file is read, `affinity` stands in for sched_getaffinity(2)
    and `mem_total` (bytes) for MemTotal of /proc/meminfo.
    """
    files = _Files(root)
    allowed = frozenset(os.sched_getaffinity(0)) if affinity is None else affinity
    total = _mem_total(files) if mem_total is None else mem_total
    mounts = _cgroup_mounts(files)
    memory = _own_cgroup(files, mounts, "memory")

    quotas = _quotas(files, _own_cgroup(files, mounts, "cpu"))
    quota = min(quotas, key=lambda quota: quota.processors, default=None)
    cores, cores_source = len(allowed), "affinity"
    if quota is not None and quota.processors < cores:
        cores, cores_source = math.floor(quota.processors), _shown(quota.path)

    budget, memory_source = total, "MemTotal"
    for limit, path in _memory_limits(files, memory):
        if limit < budget:
            budget, memory_source = limit, _shown(path)

    return Resources(
        cores=max(1, cores),
        quota=None if quota is None else float(quota.processors),
        memory_bytes=budget,
        affinity=allowed,
        working_set_bytes=_working_set(files, memory),
        cores_source=cores_source,
        memory_source=memory_source,
        warnings=tuple(dict.fromkeys(files.warnings)),
    )


_MAX_BYTES = 1 << 20
"""No file read here is larger on a healthy system."""
_PATH_MAX = 4096
"""linux/limits.h; the kernel prints no longer cgroup path."""
_DEFAULT_PERIOD_US = 100_000
"""cpu.max without a period (cgroup-v2.rst)."""

# At most 20 digits, the length of 2**64: the kernel writes no longer number, int() refuses very long ones.
_INTEGER = re.compile(r"\s*(-?[0-9]{1,20})\s*", re.ASCII)
_CPU_MAX = re.compile(r"\s*(max|[0-9]{1,20})(?:\s+([0-9]{1,20}))?\s*", re.ASCII)
_STAT_LINE = re.compile(r"(\S+) ([0-9]{1,20})", re.ASCII)
_MEM_TOTAL = re.compile(r"^MemTotal:[ \t]+([0-9]{1,20}) kB$", re.ASCII | re.MULTILINE)
_OCTAL_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")

_Parts = tuple[str, ...]
"""An absolute path's components: prefixes compare by component, so /docker/ab is not below /docker/a."""


class _Files:
    """Reads the small text files of /proc and the cgroup tree, and collects what was wrong with them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []

    def warn(self, path: Path, problem: str) -> None:
        self.warnings.append(f"{_shown(path)}: {problem}")

    def text(self, path: Path) -> str | None:
        """Return the file's text, None where there is none."""
        try:
            with path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
            return None
        except OSError as error:
            self.warn(path, f"cannot be read ({error.strerror})")
            return None
        if len(content) > _MAX_BYTES:
            self.warn(path, "is larger than 1 MiB and read no further")
        return os.fsdecode(content[:_MAX_BYTES])

    def integer(self, path: Path) -> int | None:
        """Return the only number in the file; None where there is none or it says "max"."""
        text = self.text(path)
        if text is None or text.strip() == "max":
            return None
        match = _INTEGER.fullmatch(text)
        if match is None:
            self.warn(path, f"is ignored, not a number: {text[:40]!a}")
            return None
        return int(match[1])

    def table(self, path: Path) -> dict[str, int]:
        """Return the "name value" lines of a file like memory.stat; empty where there are none."""
        text = self.text(path)
        if text is None:
            return {}
        matches = [_STAT_LINE.fullmatch(line) for line in text.removesuffix("\n").split("\n")]
        if None in matches:
            self.warn(path, "has lines that are ignored, not a name and a number")
        return {match[1]: int(match[2]) for match in matches if match}


def _shown(path: Path) -> str:
    """Return the path as text that any log can encode, even where a name in it is not UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _mem_total(files: _Files) -> int:
    """Return the bytes of memory that the kernel manages."""
    path = files.root / "proc/meminfo"
    match = _MEM_TOTAL.search(files.text(path) or "")
    if match and int(match[1]) > 0:
        return int(match[1]) * 1024
    files.warn(path, "gives no MemTotal, sysconf(3) is asked instead")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class _Mount(NamedTuple):
    """One cgroup file system: the cgroup at `root` and all below it are seen at `point`."""

    version: Literal[1, 2]
    controllers: frozenset[str]  # of v1, among the other super options; a v2 mount does not list them
    root: _Parts
    point: Path

    def holds(self, path: _Parts) -> bool:
        return path[: len(self.root)] == self.root


class _Cgroup(NamedTuple):
    """Where one controller's files of this process lie."""

    version: Literal[1, 2]
    levels: list[Path]  # from the process's own directory up to the mountpoint


def _parts(path: str) -> _Parts:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _unescape(field: str) -> str:
    r"""Undo mountinfo's octal escapes (\040 for a space); in bytes, since a character may be several."""
    return os.fsdecode(_OCTAL_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), os.fsencode(field)))


def _cgroup_mounts(files: _Files) -> list[_Mount]:
    """Find the cgroup mounts in /proc/self/mountinfo (proc.rst, section 3.5)."""
    path = files.root / "proc/self/mountinfo"
    text = files.text(path)
    if not text:
        files.warn(path, "is missing or empty, so no cgroup limit can be found")
        return []
    mounts: dict[Path, _Mount] = {}  # by mountpoint: a later mount hides an earlier one
    for line in text.removesuffix("\n").split("\n"):
        head, _, tail = line.partition(" - ")
        place, kind = head.split(" "), tail.split(" ")
        if len(place) < 6 or len(kind) < 3:
            files.warn(path, "has lines that are ignored, not in the form of mountinfo")
            continue
        root, point = _parts(_unescape(place[3])), _parts(_unescape(place[4]))
        if kind[0] not in ("cgroup", "cgroup2") or ".." in point:  # ".." would leave our root
            continue
        where = files.root.joinpath(*point)
        mounts[where] = _Mount(2 if kind[0] == "cgroup2" else 1, frozenset(kind[-1].split(",")), root, where)
    return list(mounts.values())


def _own_path(files: _Files, controller: str) -> _Parts:
    """Find the process's cgroup in the controller's hierarchy, "" being that of v2 (cgroups(7))."""
    path = files.root / "proc/self/cgroup"
    for line in (files.text(path) or "").split("\n"):
        fields = line.split(":", 2)
        if len(fields) == 3 and controller in fields[1].split(",") and len(fields[2]) <= _PATH_MAX:
            return _parts(fields[2].removesuffix(" (deleted)"))  # the mark of a removed cgroup
    files.warn(path, f"names no cgroup for {controller or 'v2'}, so limits are read at its mountpoint")
    return ()


def _own_cgroup(files: _Files, mounts: list[_Mount], controller: str) -> _Cgroup:
    """Locate the process's limits; a v1 mount that carries the controller wins, for v2 then lacks it."""
    v1 = [mount for mount in mounts if mount.version == 1 and controller in mount.controllers]
    candidates = v1 or [mount for mount in mounts if mount.version == 2]
    if not candidates:
        files.warn(files.root / "proc/self/mountinfo", f"shows no cgroup mount for {controller}, so no limit")
        return _Cgroup(2, [])
    path = _own_path(files, controller if v1 else "")
    mount = max(candidates, key=lambda mount: len(mount.root) if mount.holds(path) else -1)
    below = path[len(mount.root) :]
    # "/" is the root of a cgroup namespace: what the mountpoint shows, whatever the mount's root.
    if ".." in (*path, *mount.root) or (path and not mount.holds(path)):
        shown = "/" + "/".join(path)
        files.warn(mount.point, f"does not show the cgroup {shown!a}, so {controller} limits are read here")
        below = ()
    own = mount.point.joinpath(*below)
    return _Cgroup(mount.version, [own, *own.parents][: len(below) + 1])


class _Quota(NamedTuple):
    """A CFS bandwidth limit."""

    processors: Fraction  # exact, so that its floor is
    path: Path


def _quotas(files: _Files, cgroup: _Cgroup) -> Iterator[_Quota]:
    """Yield the quota of each level that has one."""
    for level in cgroup.levels:
        path = level / ("cpu.cfs_quota_us" if cgroup.version == 1 else "cpu.max")
        quota, period = _cfs_quota(files, path) if cgroup.version == 1 else _cpu_max(files, path)
        if quota is None or period is None:
            continue
        if quota > 0 and period > 0:
            yield _Quota(Fraction(quota, period), path)
        else:
            files.warn(path, f"is ignored, {quota} us in {period} us is no quota")


def _cfs_quota(files: _Files, path: Path) -> tuple[int | None, int | None]:
    """Return v1's quota, None for no limit, and period, both in us (sched-bwc.rst)."""
    quota, period = files.integer(path), files.integer(path.parent / "cpu.cfs_period_us")
    return None if quota is None or quota <= 0 else quota, period


def _cpu_max(files: _Files, path: Path) -> tuple[int | None, int]:
    """Return v2's quota, None for no limit, and period, both in us (cgroup-v2.rst)."""
    text = files.text(path)
    if text is None:
        return None, _DEFAULT_PERIOD_US
    match = _CPU_MAX.fullmatch(text)
    if match is None:
        files.warn(path, f"is ignored, not a quota and a period: {text[:40]!a}")
        return None, _DEFAULT_PERIOD_US
    return None if match[1] == "max" else int(match[1]), int(match[2] or _DEFAULT_PERIOD_US)


def _memory_limits(files: _Files, cgroup: _Cgroup) -> Iterator[tuple[int, Path]]:
    """Yield every limit in bytes; those set at a level before those only reported by memory.stat."""
    names = ("memory.limit_in_bytes",) if cgroup.version == 1 else ("memory.max", "memory.high")
    found = [(files.integer(level / name), level / name) for name in names for level in cgroup.levels]
    if cgroup.version == 1:  # it includes ancestors above the mountpoint (cgroup-v1/memory.rst, 5.2)
        stats = [level / "memory.stat" for level in cgroup.levels]
        found += [(files.table(path).get("hierarchical_memory_limit"), path) for path in stats]
    for limit, path in found:
        if limit is not None and limit > 0:
            yield limit, path
        elif limit is not None:  # 0 is legal, but nothing could run under it, and this process runs
            files.warn(path, f"is ignored, a limit of {limit} bytes cannot hold here")


def _working_set(files: _Files, cgroup: _Cgroup) -> int | None:
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
