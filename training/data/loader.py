"""DataLoader whose workers gather whole batches.

A stop signal that reaches every process of a container must not end a loader's worker: torch would fail the training,
which still has to save. Workers have the stop signals blocked from their start, and heed only their parent's.
"""

import os
import signal
import threading
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from preflight.contract.plan import Plan
from training.process.interrupts import STOP_SIGNALS, held_back_from_workers

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
        worker_init_fn=obey_parent,
    )


def iterate(loader: DataLoader[Batch]) -> Iterator[Batch]:
    """Return the batches of an epoch; the first call starts the workers."""
    with held_back_from_workers():
        return iter(loader)


def obey_parent(worker: int) -> None:  # noqa: ARG001 - the signature of `worker_init_fn`
    """End a loader's worker at a stop signal of the parent alone, which torch sends to one that hangs."""

    def obey() -> None:
        while signal.sigwaitinfo(STOP_SIGNALS).si_pid != os.getppid():
            pass
        os._exit(0)

    threading.Thread(target=obey, daemon=True).start()
