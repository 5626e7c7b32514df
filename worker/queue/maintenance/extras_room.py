"""Room for extras while a job runs: a core, and so much memory that no training can be killed for theirs.

They begin while a job runs only where half of the memory is free, and at least `MIN_FREE_BYTES`. While they run, free
memory is measured several times a second; below half of that they give way and run when the worker is idle.
"""

from typing import Final

from preflight.container.resources import MemoryUse, Resources

MIN_FREE_BYTES: Final = 2 << 30
"""Bytes of free memory that extras need at least to begin while a job runs; the largest, an ONNX export, takes about
half of it."""
MIN_CORES: Final = 2


def may_run_beside(resources: Resources) -> bool:
    """Whether extras that begin now may run at the same time as the next job."""
    enough = max(MIN_FREE_BYTES, resources.memory_bytes // 2)
    is_known = resources.working_set_bytes is not None
    return resources.cores >= MIN_CORES and is_known and resources.headroom_bytes >= enough


def must_give_way(memory: MemoryUse) -> bool:
    """Whether extras that run at the same time as a job have to end."""
    return memory.limit - (memory.bytes() or 0) < max(MIN_FREE_BYTES, memory.limit // 2) // 2
