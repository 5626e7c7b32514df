"""What of a plan is settled when its process starts: the allocator, inter-operation threads, the processors.

Two plans that agree in these can be measured in one process; any others need one each. Torch-free.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from training.config.plan import Allocator, Plan

TCMALLOC: Final = "libtcmalloc_minimal.so.4"
"""Of gperftools 2.x, which Debian packages as libtcmalloc-minimal4 (libtcmalloc-minimal4t64 from trixie on)."""
LIBRARIES: Final = (Path("/usr/lib"), Path("/usr/lib64"), Path("/usr/local/lib"), Path("/lib"))
QUIET: Final = str(1 << 60)
"""Bytes above which tcmalloc reports an allocation on stderr: never."""

CUBLAS, CUBLAS_REPEATABLE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Without it no deterministic job runs on CUDA (torch.use_deterministic_algorithms)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What two plans have to share to run in one process."""

    allocator: Allocator
    interop: int
    processors: int | None
    """How many the process is kept on; None: on all that it may use."""


def setting_of(plan: Plan) -> Setting:
    """Return the setting that `plan` runs in."""
    return Setting(plan.allocator, plan.interop, plan.threads if plan.affinity == "pinned" else None)


def find_tcmalloc(libraries: Sequence[Path] = LIBRARIES) -> Path | None:
    """Return where tcmalloc lies, None where it is not installed."""
    for library in libraries:
        for path in (library / TCMALLOC, *sorted(library.glob(f"*/{TCMALLOC}"))):
            if path.is_file():
                return path
    return None


def environment_for(plan: Plan, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return `environment` with what the allocator and the device of `plan` need before the process starts.

    Where tcmalloc is not installed any more, it is the one with which the process runs anyway.
    """
    if plan.device == "cuda":
        environment = {**environment, CUBLAS: CUBLAS_REPEATABLE}
    path = find_tcmalloc() if plan.allocator == "tcmalloc" else None
    if path is None:
        return environment
    preload = ":".join(part for part in (str(path), environment.get("LD_PRELOAD", "")) if part)
    return {**environment, "LD_PRELOAD": preload, "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": QUIET}


def pin(plan: Plan) -> None:
    """Keep this process on as many processors as a pinned plan has threads; call before the first parallel work.

    The processors are those of the affinity set, which need not begin at 0.
    """
    if plan.affinity == "pinned":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan.threads])
