"""How `epochs`, `epoch_samples`, `train_samples` and `max_steps` go together; torch-free.

A pass takes each of the `train_samples` once. An epoch has `epoch_samples`, whatever the length of a pass; by default
it is one pass. `max_steps` ends the training within its `epochs`, whose last one is then shorter.
"""

from typing import Final

from preflight.contract.spec import TrainSpec
from preflight.errors import InvalidConfig

LEAST_SHARE: Final = 2
"""Fewest samples of an effective batch for each rank: a single one has no variance for a batch norm."""


def check_lengths(spec: TrainSpec, train: int | None = None) -> None:
    """Check that the lengths do not contradict one another.

    `train` are the samples of a pass; None: only `train_samples` says, as the data set is not known yet.

    Raises:
        InvalidConfig: a pass or an epoch is less than a batch, or there are more `max_steps` than steps.
    """
    for field, samples in (("train_samples", spec.train_samples), ("epoch_samples", spec.epoch_samples)):
        if samples is not None and samples < spec.batch_size:
            raise InvalidConfig(
                f"{field} is {samples}, less than a batch of {spec.batch_size}; use at least {spec.batch_size}",
                field=field,
            )
    samples = spec.epoch_samples or spec.train_samples or train
    if samples is None or spec.max_steps is None:
        return
    steps = spec.epochs * (samples // spec.batch_size)
    if spec.max_steps > steps:
        raise InvalidConfig(
            f"max_steps is {spec.max_steps}, but epochs is {spec.epochs}, which makes {steps} steps; "
            f"use at most {steps}, or more epochs",
            field="max_steps",
        )


def require_shares(workers: int, batch_size: int) -> None:
    """Refuse more workers than have a share of the effective batch; raises `InvalidConfig`."""
    if workers * LEAST_SHARE > batch_size:
        raise InvalidConfig(
            f"{workers} workers would share batches of {batch_size} samples, but each needs {LEAST_SHARE} of them; "
            f"use at most {max(1, batch_size // LEAST_SHARE)} workers or a larger batch_size",
            field="workers",
        )
