"""Search space: knobs, and options of a container."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from preflight.container.resources import Resources
from preflight.contract.plan import Plan
from training.system.requirements import MORE_SHARED_MEMORY, SHARED_MEMORY

DEFAULT_SECONDS: Final = 45.0
"""Most seconds of a calibration, without the start of processes; it takes a share of the training's time."""
COMPILE_SECONDS: Final = 20.0
"""Seconds that torch.compile takes for a training step; 8 to 21 s were measured."""

UNLIMITED: Final = 1 << 62
PREFETCH: Final = 2
"""Batches that each loader worker keeps ready: torch's own default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Options of this container."""

    threads: tuple[int, ...]
    """Thread counts worth trying, whole cores first."""
    processors: int
    """Processors that the process may run on."""
    bfloat16: bool
    """Whether the processor has instructions for it; measurement decides whether they pay."""
    tcmalloc: bool
    compiler: bool
    """Whether there is a C++ compiler, without which torch.compile cannot work."""
    shared_bytes: int = UNLIMITED
    """Room in shared memory for the batches of loader workers."""

    def beside_others(self, free: int | None) -> "Space":
        """Return the options where others leave `free` processors: threads that wait for one slow all others down."""
        if free is None or free >= max(self.threads):
            return self
        return replace(self, threads=tuple(count for count in self.threads if count <= free) or (1,))


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchState:
    """Measurements of the best plan when a knob is turned."""

    batch_size: int
    batch_statistics: bool
    """Whether the model has batch norms."""
    slow_weight_gradients: bool
    """Whether the model has convolutions whose weights' gradients may be quicker as matrix products."""
    fetch_share: float
    validation_share: float
    """Share of an epoch spent validating."""
    training_s: float
    """Predicted seconds of the whole training."""
    room_bytes: float
    """Bytes of memory that the training process leaves."""
    process_bytes: float
    """Bytes that a process takes with torch loaded."""
    batch_bytes: int
    """Bytes of an effective batch as float32."""
    most_samples: int
    """Samples that are sure to fit at once."""
    gained: Mapping[Plan, float]
    """Plans that won: how much faster each was than the best one before it."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A plan that is not worth a measurement, and why."""

    plan: Plan
    why: str


Turned = list[Plan | Skipped]


def oversubscription(own: Plan, resources: Resources) -> list[str]:
    """Return warnings of threads and loader workers beyond the cores of a container, with both numbers."""
    cores = max(thread_counts(resources))
    has = "1 core" if cores == 1 else f"{cores} cores"
    remedies = (
        (own.threads, "threads", f"set plan.threads to {resources.cores} at most, or leave it out"),
        (own.loader_workers, "loader workers", f"set plan.loader_workers to {cores} at most, or leave it out"),
    )
    return [
        f"the plan asks for {count} {what}, and the container has {has}: they take turns, which is slower; {remedy}"
        for count, what, remedy in remedies
        if count > cores
    ]


def thread_counts(resources: Resources) -> tuple[int, ...]:
    """Return the thread counts worth trying: whole cores, the quota rounded up, then halves down to one."""
    available = max(1, len(resources.affinity))
    ceiling = available if resources.quota is None else min(available, math.ceil(resources.quota))
    halves = (resources.cores >> power for power in range(resources.cores.bit_length()))
    return tuple(dict.fromkeys((resources.cores, ceiling, *halves)))


def loader_bytes(plan: Plan, batch_bytes: int) -> int:
    """Return the bytes of shared memory that a plan's loader workers fill.

    Those are the batches that are ready, the one that is trained on and, until it is freed, the one before.
    """
    if not plan.loader_workers:
        return 0
    return (plan.loader_workers * (plan.prefetch_factor or PREFETCH) + 2) * batch_bytes


def fit_shared_memory(plan: Plan, batch_bytes: int, room: int) -> tuple[Plan, str | None]:
    """Return a plan whose batches fit into `room` bytes of shared memory, and a warning where it is another one.

    A loader worker that finds no room is killed by SIGBUS. Without workers the training process gathers the same
    batches, with the same result.
    """
    wanted = loader_bytes(plan, batch_bytes)
    if wanted <= room:
        return plan, None
    count, each = plan.loader_workers, plan.prefetch_factor or PREFETCH
    workers = "1 loader worker" if count == 1 else f"{count} loader workers"
    return replace(plan, loader_workers=0, prefetch_factor=None), (
        f"{workers} with {each} batches each need {wanted >> 20} MiB of shared memory, but {SHARED_MEMORY} has "
        f"{room >> 20} MiB free: the training gathers its batches itself; {MORE_SHARED_MEMORY}"
    )
