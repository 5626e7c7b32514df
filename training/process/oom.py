"""Out-of-memory kills: a cgroup for a child, so that they end it and no other process."""

import itertools
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from preflight.container.cgroups import CHILD, Cgroup, Files, mem_total, memory_limits
from preflight.container.oom_kills import counted_kills, memory_cgroup, oom_kills

RESERVE: Final = 64 << 20
"""Bytes of the limit that a child leaves to its supervisor; a tenth where that is less."""
REMOVE_TIMEOUT: Final = 2.0
"""Seconds to wait for the end of the last process in a cgroup."""

_NUMBERS: Final = itertools.count()


def reserve(limit: int) -> int:
    """Return the bytes of a limit that a child leaves to its supervisor."""
    return min(RESERVE, limit // 10)


class ChildCgroup:
    """A cgroup for one child at a time, its limit a little below that of this process. Use as a context.

    Where none can be made, `procs` is None, and kills are counted in the cgroup of this process.
    """

    def __init__(self, root: Path = Path("/"), *, shares: int = 1, shared: int = 0) -> None:
        """Read the cgroup files beneath `root`; the limit is divided among `shares` workers.

        `shared` are bytes that the child shares with its fork server, which are charged to the cgroup of that.
        """
        self._files = Files(root)
        self._cgroup = memory_cgroup(self._files)
        self._limit = _limit(self._files, self._cgroup)
        self._shares = shares
        self._shared = shared
        self._directory: Path | None = None

    def __enter__(self) -> Self:
        if self._cgroup.levels and _is_home(self._files, self._cgroup.levels[0]):
            _remove_leftovers(self._cgroup.levels[0])
            self._make(self._cgroup.levels[0])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._directory is not None:
            _remove(self._directory)
            self._directory = None

    def _make(self, own: Path) -> None:
        directory = own / f"preflight-{os.getpid()}-{_started(os.getpid())}-{next(_NUMBERS)}"
        limit = directory / ("memory.limit_in_bytes" if self._cgroup.version == 1 else "memory.max")
        try:
            directory.mkdir()
            # In v2 a cgroup with processes cannot limit its children: there the file does not exist.
            with limit.open("r+") as file:
                share = self._share()
                if share is not None:
                    less = share - reserve(share)
                    file.write(str(less - self._shared))
                    self._limit = less
        except OSError:
            _remove(directory)
            return
        self._directory = directory

    def _share(self) -> int | None:
        """Return the bytes that this worker and its child may have; None: the machine's."""
        if self._shares == 1:
            return self._limit
        return (self._limit or mem_total(self._files)) // self._shares

    @property
    def procs(self) -> Path | None:
        """The file to which a process writes its id to join; None: there is no cgroup."""
        return self._directory and self._directory / "cgroup.procs"

    def oom_kills(self) -> int:
        """Return the out-of-memory kills in the cgroup, else in that of this process."""
        if self._directory is None:
            return oom_kills(self._files.root)
        return counted_kills(self._files, self._cgroup, self._directory) or 0

    def peak_bytes(self) -> int | None:
        """Return the peak memory of the child with its page cache and the memory that it shares; None: unknown."""
        if self._directory is None:
            return None
        name = "memory.max_usage_in_bytes" if self._cgroup.version == 1 else "memory.peak"
        peak = self._files.integer(self._directory / name)
        return None if peak is None else peak + self._shared

    def limit_bytes(self) -> int | None:
        """Return the limit of a child in bytes, shared memory included; None: the machine's.

        It is the container's where that was lowered since.
        """
        now = _limit(Files(self._files.root), self._cgroup)
        return self._limit if now is None else min(now, self._limit or now)


def _limit(files: Files, cgroup: Cgroup) -> int | None:
    """Return the lowest limit of this process, None where that is the machine's memory."""
    least = min((limit for limit, _ in memory_limits(files, cgroup)), default=None)
    return least if least is not None and least < mem_total(files) else None


def _is_home(files: Files, directory: Path) -> bool:
    """Whether this process is in the cgroup; elsewhere a child would escape its limits."""
    return str(os.getpid()) in (files.text(directory / "cgroup.procs") or "").split()


def _remove_leftovers(own: Path) -> None:
    """Remove the cgroups of parents that were killed."""
    for directory in own.glob("preflight-*"):
        match = CHILD.fullmatch(directory.name)
        if match and _started(int(match[1])) != int(match[2]):
            with suppress(OSError):
                directory.rmdir()


def _started(process: int) -> int | None:
    """Return the start of a process in clock ticks since boot (proc.rst, stat field 22); None: there is none."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _remove(directory: Path) -> None:
    """Remove a cgroup once its last process has ended; on a timeout `_remove_leftovers` does so later."""
    deadline = time.monotonic() + REMOVE_TIMEOUT
    while directory.exists() and time.monotonic() < deadline:
        try:
            directory.rmdir()
        except OSError:
            time.sleep(0.01)
