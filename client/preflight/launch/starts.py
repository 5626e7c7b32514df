"""Settings that only the start of a command can set: another allocator, huge pages, how threads wait, inter-op threads.

They do not change the result. A setting that the user has made by an environment variable is left alone.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from preflight.tuner.settings import HUGE_PAGES, MALLOC_VARIABLES

TCMALLOC: Final = "libtcmalloc_minimal.so.4"
"""gperftools 2.x: Debian's libtcmalloc-minimal4 (libtcmalloc-minimal4t64 since trixie)."""
NO_REPORT_BYTES: Final = str(1 << 60)
"""Size from which tcmalloc reports an allocation on stderr: never."""
ALLOCATORS: Final = (
    ("tcmalloc", TCMALLOC), ("jemalloc", "libjemalloc.so.2"), ("mimalloc", "libmimalloc.so.2"),
)  # fmt: skip
LIBRARIES: Final = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"), Path("/lib"))
LEAST_GLIBC: Final = (2, 35)
TRANSPARENT: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
WAITING: Final = ("OMP_WAIT_POLICY", "KMP_BLOCKTIME", "KMP_LIBRARY", "GOMP_SPINCOUNT")
"""Variables by which a user chooses how OpenMP's threads wait for work."""


@dataclass(frozen=True, slots=True)
class StartSetting:
    """One setting, by the environment of the command or before the first forward pass."""

    name: str
    """Name in sentences, such as jemalloc."""
    kind: Literal["allocator", "huge pages", "waiting", "interop"]
    """Kind of the setting; at most one of a kind can be set."""
    variables: Mapping[str, str] = field(default_factory=dict)
    interop: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a command is started."""

    kept: tuple[StartSetting, ...] = ()
    trial: StartSetting | None = None

    @property
    def settings(self) -> tuple[StartSetting, ...]:
        """All settings of the start; a trial takes the place of the kept one of its kind."""
        if self.trial is None:
            return self.kept
        return (*(each for each in self.kept if each.kind != self.trial.kind), self.trial)

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the command."""
        found = dict(variables)
        for each in self.settings:
            found |= each.variables
        return found

    @property
    def interop(self) -> int | None:
        """Inter-op threads; None: torch's default."""
        return next((each.interop for each in self.settings if each.interop is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """Findings of an earlier start of the same workload."""

    threads: int
    """Threads with which that run ended."""
    interop: int
    interop_at_import: int
    is_compiled: bool
    """Whether torch.compile was used: then nothing is done before the first forward pass."""


def possible(
    variables: Mapping[str, str], before: Before, quota: float | None, libraries: Sequence[Path]
) -> list[StartSetting]:
    """Return the settings that can be tried in this container, the most promising first."""
    found: list[StartSetting] = []
    tunables = variables.get("GLIBC_TUNABLES", "")
    if not any(name in variables for name in ("LD_PRELOAD", *MALLOC_VARIABLES)) and "glibc.malloc." not in tunables:
        found += _allocators(libraries)
        if _has_huge_pages():
            joined = ":".join(filter(None, (tunables, HUGE_PAGES)))
            found.append(StartSetting("huge pages", "huge pages", {"GLIBC_TUNABLES": joined}))
    if before.threads > 1 and not any(name in variables for name in WAITING):
        # Spinning threads use up a quota, and sleeping ones wake up late.
        policy = "passive" if quota is not None else "active"
        found.append(StartSetting(f"{policy} waiting of threads", "waiting", {"OMP_WAIT_POLICY": policy.upper()}))
    if before.interop == before.interop_at_import > 1 and not before.is_compiled:
        found.append(StartSetting("1 inter-op thread", "interop", interop=1))
    return found


def _allocators(libraries: Sequence[Path]) -> list[StartSetting]:
    found = []
    for name, file in ALLOCATORS:
        path = find_library(file, libraries)
        if path is not None:
            more = {"TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": NO_REPORT_BYTES} if name == "tcmalloc" else {}
            found.append(StartSetting(name, "allocator", {"LD_PRELOAD": str(path), **more}))
    return found


def find_library(file: str, libraries: Sequence[Path]) -> Path | None:
    """Return the first library of this name, as the dynamic linker looks for it; None: there is none."""
    places = (path for folder in libraries for path in (folder / file, *sorted(folder.glob(f"*/{file}"))))
    return next((path for path in places if path.is_file()), None)


def _has_huge_pages() -> bool:
    """Whether asking for huge pages changes anything, and malloc can."""
    with suppress(OSError, ValueError):
        library, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        known = tuple(int(part) for part in version.split(".")[:2])
        return library == "glibc" and known >= LEAST_GLIBC and "[madvise]" in TRANSPARENT.read_text()
    return False
