"""Settings that can change while a process trains: intra-op threads, glibc's malloc, the processors of its threads."""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Malloc = Literal["untouched", "default", "tuned"]
"""`untouched`: no mallopt yet. `default`: what glibc's dynamic thresholds grow to in a training, set explicitly, as any
mallopt ends their growth. `tuned`: large tensors stay in the heap and are not page-faulted again at each step."""

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Parameters of mallopt(3), from glibc's malloc.h."""
LARGEST: Final = 2**31 - 1
GROWN: Final = 32 << 20
"""DEFAULT_MMAP_THRESHOLD_MAX of glibc on 64 bits: the dynamic threshold ends here, that of trimming at twice as much.
Before glibc 2.35 more is refused."""
OTHER_ALLOCATORS: Final = ("jemalloc", "tcmalloc", "mimalloc", "hoard", "snmalloc")
HUGE_PAGES: Final = "glibc.malloc.hugetlb=1"
"""malloc asks for transparent huge pages by madvise, from glibc 2.35 on (its manual, Memory Allocation Tunables)."""
MALLOC_VARIABLES: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
"""Variables of a user who has tuned malloc; GLIBC_TUNABLES with `glibc.malloc.` is another one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One way to run."""

    threads: int
    malloc: Malloc = "untouched"
    pinned: bool = False
    """Whether the process's threads stay on as many processors as there are intra-op threads."""

    def describe(self) -> str:
        """Return the settings as words: 1 thread, tuned malloc."""
        malloc = f" and {self.describe_malloc()}" if self.malloc != "untouched" else ""
        pinned = f", pinned to {'1 processor' if self.threads == 1 else f'{self.threads} processors'}"
        return f"{describe_threads(self.threads)}{malloc}{pinned if self.pinned else ''}"

    def describe_malloc(self) -> str:
        """Return what was done to malloc; nothing where it is untouched."""
        return {"untouched": "", "default": "fixed malloc thresholds", "tuned": "tuned malloc"}[self.malloc]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting of a running training that changes, or that stays after a trial."""

    field: Literal["threads", "micro_batch"]
    before: int
    after: int
    reason: str
    predicted_epoch_s: float | None = None
    predicted_low_s: float | None = None
    predicted_high_s: float | None = None
    """Seconds of an epoch from now on, with the 95 % interval; None: it was not predicted again."""


def describe_threads(count: int) -> str:
    """Return 1 thread, 2 threads."""
    return "1 thread" if count == 1 else f"{count} threads"


class Knobs:
    """Applies settings to this process."""

    def __init__(self, set_threads: Callable[[int], None]) -> None:
        """Change threads by `set_threads`, which is torch's."""
        self._set_threads = set_threads
        self._allowed = os.sched_getaffinity(0)
        self._now: Settings | None = None

    def apply(self, wanted: Settings) -> None:
        """Change the settings that differ from those that were applied last."""
        before, self._now = self._now, wanted
        if before is None or before.threads != wanted.threads:
            self._set_threads(wanted.threads)
        if wanted.malloc != "untouched" and (before is None or before.malloc != wanted.malloc):
            set_malloc(tuned=wanted.malloc == "tuned")
        pins = (wanted.pinned, wanted.threads if wanted.pinned else 0)
        if pins != ((before.pinned, before.threads if before.pinned else 0) if before else (False, 0)):
            self._pin(wanted.threads if wanted.pinned else len(self._allowed))

    def release(self) -> None:
        """Let a child that was forked run on all processors that this process had at first."""
        if self._now is not None and self._now.pinned:
            with suppress(OSError):
                os.sched_setaffinity(0, self._allowed)

    def _pin(self, processors: int) -> None:
        """Keep every thread of this process on the first processors of those that it had at first."""
        chosen = sorted(self._allowed)[:processors]
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(int(thread.name), chosen)


def set_malloc(*, tuned: bool) -> bool:
    """Set malloc's thresholds for the rest of the process; return False where the C library has no mallopt (musl)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    if tuned:
        heap = mallopt(M_MMAP_THRESHOLD, LARGEST) or mallopt(M_MMAP_THRESHOLD, GROWN)
        return bool(heap and mallopt(M_TOP_PAD, 256 << 20) and mallopt(M_TRIM_THRESHOLD, LARGEST))
    done = mallopt(M_MMAP_THRESHOLD, GROWN) and mallopt(M_TOP_PAD, 128 << 10) and mallopt(M_TRIM_THRESHOLD, 2 * GROWN)
    trim_malloc()
    return bool(done)


def trim_malloc() -> None:
    """Give freed memory back to the kernel, which a tuned malloc never does by itself; nothing where it cannot."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def explain_fixed_malloc(variables: dict[str, str], maps: Path = Path("/proc/self/maps")) -> str | None:
    """Return why malloc is not raced in a process with these environment variables; None: it can be."""
    with suppress(OSError):
        mapped = maps.read_text(errors="replace")
        for name in OTHER_ALLOCATORS:
            if f"lib{name}" in mapped:
                return f"the allocator is {name}"
    named = [name for name in MALLOC_VARIABLES if name in variables]
    tunables = variables.get("GLIBC_TUNABLES", "").replace(HUGE_PAGES, "")
    if named or "glibc.malloc." in tunables:
        return f"{named[0] if named else 'GLIBC_TUNABLES'} sets malloc"
    try:
        _ = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return "the C library has no mallopt"
    return None
