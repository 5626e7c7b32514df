"""The cgroups that this process is in, v1, v2 or a mix of both, and the small files that the kernel shows there.

The rules are the kernel's: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst for the files,
filesystems/proc.rst for mountinfo, cgroup_namespaces(7) for paths. Nothing found in a file is an error.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

_MAX_BYTES = 1 << 20
"""Most bytes that are read of a file; on a healthy system no file is larger."""
_PATH_MAX = 4096
"""Longest cgroup path that the kernel prints (linux/limits.h)."""

# At most 20 digits, the length of 2**64: the kernel writes no longer number, int() refuses very long ones.
_INTEGER = re.compile(r"\s*(-?[0-9]{1,20})\s*", re.ASCII)
_STAT_LINE = re.compile(r"(\S+) ([0-9]{1,20})", re.ASCII)
_MEM_TOTAL = re.compile(r"^MemTotal:[ \t]+([0-9]{1,20}) kB$", re.ASCII | re.MULTILINE)
_OCTAL_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")

_Parts = tuple[str, ...]
"""An absolute path's components: prefixes compare by component, so /docker/ab is not below /docker/a."""


class Files:
    """Reads the small text files of /proc and the cgroup tree, and collects their faults."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.warnings: list[str] = []

    def warn(self, path: Path, problem: str) -> None:
        """Collect a fault of a file."""
        self.warnings.append(f"{shown(path)}: {problem}")

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


def shown(path: Path) -> str:
    """Return the path as text that any log can encode, even where a name in it is not UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


class Mount(NamedTuple):
    """One cgroup file system: the cgroup at `root` and all below it are seen at `point`."""

    version: Literal[1, 2]
    controllers: frozenset[str]  # of v1, among the other super options; a v2 mount does not list them
    root: _Parts
    point: Path

    def holds(self, path: _Parts) -> bool:
        """Whether the cgroup `path` is seen here."""
        return path[: len(self.root)] == self.root


CHILD: Final = re.compile(r"preflight-([0-9]{1,9})-([0-9]{1,20})-[0-9]{1,9}", re.ASCII)
"""Name of the cgroup of a child alone: process id and start time of its parent, and a number."""


class Cgroup(NamedTuple):
    """Directories with one controller's files of this process."""

    version: Literal[1, 2]
    levels: list[Path]  # from the process's own directory up to the mountpoint


def _parts(path: str) -> _Parts:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _unescape(field: str) -> str:
    r"""Undo mountinfo's octal escapes (\040 for a space); in bytes, since a character may be several."""
    return os.fsdecode(_OCTAL_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), os.fsencode(field)))


def cgroup_mounts(files: Files) -> list[Mount]:
    """Find the cgroup mounts in /proc/self/mountinfo (proc.rst, section 3.5)."""
    path = files.root / "proc/self/mountinfo"
    text = files.text(path)
    if not text:
        files.warn(path, "is missing or empty, so no cgroup limit can be found")
        return []
    mounts: dict[Path, Mount] = {}  # by mountpoint: a later mount hides an earlier one
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
        mounts[where] = Mount(2 if kind[0] == "cgroup2" else 1, frozenset(kind[-1].split(",")), root, where)
    return list(mounts.values())


def _own_path(files: Files, controller: str) -> _Parts:
    """Find the process's cgroup in the controller's hierarchy, "" being that of v2 (cgroups(7))."""
    path = files.root / "proc/self/cgroup"
    for line in (files.text(path) or "").split("\n"):
        fields = line.split(":", 2)
        if len(fields) == 3 and controller in fields[1].split(",") and len(fields[2]) <= _PATH_MAX:
            return _parts(fields[2].removesuffix(" (deleted)"))  # the mark of a removed cgroup
    files.warn(path, f"names no cgroup for {controller or 'v2'}, so limits are read at its mountpoint")
    return ()


def own_cgroup(files: Files, mounts: list[Mount], controller: str) -> Cgroup:
    """Locate the process's limits; a v1 mount that carries the controller wins, for v2 then lacks it."""
    v1 = [mount for mount in mounts if mount.version == 1 and controller in mount.controllers]
    candidates = v1 or [mount for mount in mounts if mount.version == 2]
    if not candidates:
        files.warn(files.root / "proc/self/mountinfo", f"shows no cgroup mount for {controller}, so no limit")
        return Cgroup(2, [])
    path = _own_path(files, controller if v1 else "")
    mount = max(candidates, key=lambda mount: len(mount.root) if mount.holds(path) else -1)
    below = path[len(mount.root) :]
    # "/" is the root of a cgroup namespace: the cgroup at the mountpoint, whatever the mount's root.
    if ".." in (*path, *mount.root) or (path and not mount.holds(path)):
        shown = "/" + "/".join(path)
        files.warn(mount.point, f"does not show the cgroup {shown!a}, so {controller} limits are read here")
        below = ()
    own = mount.point.joinpath(*below)
    return Cgroup(mount.version, [own, *own.parents][: len(below) + 1])


def mem_total(files: Files) -> int:
    """Return the bytes of memory that the kernel manages."""
    path = files.root / "proc/meminfo"
    match = _MEM_TOTAL.search(files.text(path) or "")
    if match and int(match[1]) > 0:
        return int(match[1]) * 1024
    files.warn(path, "gives no MemTotal, sysconf(3) is asked instead")
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def memory_limits(files: Files, cgroup: Cgroup) -> Iterator[tuple[int, Path]]:
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
