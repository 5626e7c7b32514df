"""What a process and its children hold: memory, file descriptors, processes."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class Held:
    """What some processes hold together."""

    processes: int
    descriptors: int
    pss: int
    """Proportional set size, bytes: memory that several processes share counts once."""

    @classmethod
    def by(cls, pids: list[int]) -> Self:
        """Return what these processes hold now; one that ends meanwhile holds nothing."""
        return cls(len(pids), sum(map(_descriptors, pids)), sum(rollup(pid, "Pss") for pid in pids))


def tree(pid: int) -> list[int]:
    """Return a process and all that descend from it, which may end at any time; empty where it is gone."""
    try:
        process = psutil.Process(pid)
        return [pid, *(child.pid for child in process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


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
