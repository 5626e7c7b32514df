"""DataLoader whose workers gather whole batches."""

from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from training.config.plan import Plan

Key = TypeVar("Key")
Batch = TypeVar("Batch")


def build_loader(dataset: Dataset[Batch], sampler: Sampler[Key], plan: Plan) -> DataLoader[Batch]:
    """Return a loader with the workers of `plan`, at least one; the sampler names a whole batch at a time."""
    return DataLoader(
        dataset,
        batch_size=None,
        sampler=sampler,
        num_workers=plan.loader_workers,
        pin_memory=plan.device == "cuda",
        persistent_workers=True,
        prefetch_factor=plan.prefetch_factor,
        multiprocessing_context="spawn",  # fork after OpenMP work can deadlock (pytorch #17199)
        generator=torch.Generator(),  # else each epoch draws from torch's own, and a resumed one draws twice
    )
