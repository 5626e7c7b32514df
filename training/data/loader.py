"""How batches are loaded where processes of their own gather them: the configuration, and the one place that builds."""

from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from training.config.plan import Plan

Key = TypeVar("Key")
Batch = TypeVar("Batch")

Start = Literal["spawn", "forkserver"]
"""How loader workers begin; fork after OpenMP work can deadlock (pytorch #17199)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoaderConfig:
    """What a DataLoader is built with.

    Raises:
        ValueError: `prefetch_factor` or `persistent_workers` without a worker.
    """

    batch_size: int
    """Samples that a key of the sampler names; the DataLoader itself puts nothing together."""
    num_workers: int = 0
    pin_memory: bool = False
    """Page-locked batches, from which copies to CUDA run beside the computing; of no use on a CPU."""
    persistent_workers: bool = False
    """Workers outlive an epoch."""
    prefetch_factor: int | None = None
    """Batches that each worker keeps ready; None: torch's 2."""
    start: Start = "spawn"

    def __post_init__(self) -> None:
        if self.num_workers < 1 and (self.persistent_workers or self.prefetch_factor is not None):
            raise ValueError("prefetch_factor and persistent_workers need num_workers of at least 1")

    @classmethod
    def of(cls, plan: Plan, batch_size: int) -> "DataLoaderConfig":
        """Return the configuration under a plan."""
        return cls(
            batch_size=batch_size, num_workers=plan.loader_workers, pin_memory=plan.device == "cuda",
            persistent_workers=plan.loader_workers > 0, prefetch_factor=plan.prefetch_factor,
        )  # fmt: skip


def build_loader(dataset: Dataset[Batch], sampler: Sampler[Key], config: DataLoaderConfig) -> DataLoader[Batch]:
    """Return a loader whose sampler names a whole batch at a time."""
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=config.num_workers,
        pin_memory=config.pin_memory,
        persistent_workers=config.persistent_workers,
        prefetch_factor=config.prefetch_factor,
        multiprocessing_context=config.start if config.num_workers else None,
        generator=torch.Generator(),  # else each epoch draws from torch's own, and a resumed one draws twice
    )
