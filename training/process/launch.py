"""Plan fields fixed at process start: allocator, inter-operation threads, processors. Without torch."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from preflight.contract.plan import Plan
from preflight.launch.starts import LIBRARIES, NO_REPORT_BYTES, TCMALLOC, find_library

CUBLAS, CUBLAS_REPEATABLE = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""Variable and value that torch.use_deterministic_algorithms requires on CUDA."""


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """Fields that two plans must share to run in one process."""

    tcmalloc: bool
    interop: int
    processors: int | None
    """Number that a pinned process runs on; None: all that it may use."""


def process_config(plan: Plan) -> ProcessConfig:
    """Return the process configuration of `plan`."""
    return ProcessConfig(
        tcmalloc=plan.allocator == "tcmalloc", interop=plan.interop,
        processors=plan.threads if plan.affinity == "pinned" else None,
    )  # fmt: skip


def find_tcmalloc(libraries: Sequence[Path] = LIBRARIES) -> Path | None:
    """Return the path of tcmalloc, None where it is not installed."""
    return find_library(TCMALLOC, libraries)


def environment_for(plan: Plan, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return `environment` with the variables for the allocator and device of `plan`; without tcmalloc as it is."""
    if plan.device == "cuda":
        environment = {**environment, CUBLAS: CUBLAS_REPEATABLE}
    path = find_tcmalloc() if plan.allocator == "tcmalloc" else None
    if path is None:
        return environment
    preload = ":".join(part for part in (str(path), environment.get("LD_PRELOAD", "")) if part)
    return {**environment, "LD_PRELOAD": preload, "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": NO_REPORT_BYTES}


def pin(plan: Plan) -> None:
    """Set the affinity of a pinned plan, one processor a thread; call before the first parallel work."""
    if plan.affinity == "pinned":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan.threads])
