"""Room for an import while a job runs, and the bounds of its process."""

import resource
from pathlib import Path
from typing import Final

from preflight.container.resources import Resources

MEMORY: Final = 1 << 30
"""Bytes that the process of an import, and each of the processes that decode for it, may have beyond their start."""
MIN_CORES: Final = 2
IDLE, USUAL = "idle", "usual"
"""Priorities of the process: while a job runs, and without one."""
LEAST_FREE: Final = 256 << 20
"""Bytes of free memory below which an import ends while a job runs; it is resumed later."""


def may_begin_beside(resources: Resources) -> bool:
    """Whether an import may begin while a job runs: with a second core, and twice its memory free."""
    is_known = resources.working_set_bytes is not None
    return resources.cores >= MIN_CORES and is_known and resources.headroom_bytes >= 2 * MEMORY


def must_give_way(resources: Resources) -> bool:
    """Whether an import has to end so that the job that runs has the memory."""
    return resources.headroom_bytes < LEAST_FREE


def limit_memory() -> None:
    """Bound the private memory of this process and of those that it starts; mapped files do not count."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + MEMORY
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
