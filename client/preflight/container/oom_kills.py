"""Out-of-memory kills that the kernel counts.

Counters: cgroup-v2.rst (`oom_kill` of memory.events, with the cgroups below) and cgroup-v1/memory.rst (of
memory.oom_control, without them).
"""

from pathlib import Path

from .cgroups import Cgroup, Files, cgroup_mounts, own_cgroup


def oom_kills(root: Path = Path("/")) -> int:
    """Return the out-of-memory kills in the cgroup of this process, else on the machine (/proc/vmstat).

    Every file is read beneath `root`.
    """
    files = Files(root)
    cgroup = memory_cgroup(files)
    counted = counted_kills(files, cgroup, cgroup.levels[0]) if cgroup.levels else None
    return files.table(root / "proc/vmstat").get("oom_kill", 0) if counted is None else counted


def memory_cgroup(files: Files) -> Cgroup:
    """Return where the memory controller's files of this process lie."""
    return own_cgroup(files, cgroup_mounts(files), "memory")


def counted_kills(files: Files, cgroup: Cgroup, directory: Path) -> int | None:
    """Return the counter of kills of a cgroup; None where there is none."""
    name = "memory.oom_control" if cgroup.version == 1 else "memory.events"
    return files.table(directory / name).get("oom_kill")
