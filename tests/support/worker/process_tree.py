"""Whether a process has ended, and what it and its children hold: memory, file descriptors, processes."""

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

SETTLED_AFTER: Final = 1.0
"""Seconds without a start or an end of a process."""


@dataclass(frozen=True, slots=True)
class Held:
    """Resources that some processes hold together."""

    processes: int
    descriptors: int
    pss: int
    """Proportional set size, bytes: memory that several of them share counts once."""

    @classmethod
    def by(cls, pids: list[int]) -> Self:
        """Return the resources that these processes hold now; one that ends meanwhile holds nothing."""
        return cls(len(pids), sum(map(_descriptors, pids)), sum(rollup(pid, "Pss") for pid in pids))


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it; empty where it is gone."""
    try:
        process = psutil.Process(pid)
        return [pid, *sorted(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def command_line(process: psutil.Process) -> list[str]:
    """Return the arguments of a process; none of one that has ended, whether somebody waited for it or not."""
    with suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def gone(pid: int) -> bool:
    """Wait until a process has ended, zombies included; False where it has not within 30 s."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if gone_now(pid):
            return True
        time.sleep(0.01)
    return False


def gone_now(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def settled_tree(pid: int) -> list[int]:
    """Return `tree` once it has not changed for a while: no child of a job is about to end."""
    pids, since = tree(pid), time.monotonic()
    while time.monotonic() - since < SETTLED_AFTER:
        time.sleep(0.02)
        if (now := tree(pid)) != pids:
            pids, since = now, time.monotonic()
    return pids


def rollup(pid: int, field: str) -> int:
    """Return a field of `/proc/<pid>/smaps_rollup`, bytes; 0 where the process is gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) << 10
    return 0


def _descriptors(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0
