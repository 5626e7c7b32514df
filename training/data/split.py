"""Split of the training samples: which train, which validate, and how many steps that makes; torch-free."""

import math
from dataclasses import dataclass

from preflight.contract.lengths import check_lengths
from preflight.contract.spec import TrainSpec
from preflight.errors import InvalidConfig
from training.data.dataset_info import DatasetInfo

DEFAULT_VALIDATION = 5_000
"""Training samples held out when neither spec nor data set says; a tenth of the training set where that is fewer."""

LEAST_STEPS = 16
"""Least optimizer steps in an epoch that the default batch leaves, for imported data."""
SMALLEST_BATCH = 16
"""Smallest batch that is chosen by default: below, batch norm gets noisy."""


@dataclass(frozen=True, slots=True)
class Split:
    """Numbers of training samples that train and that validate (the last ones), and of steps."""

    train: int
    available: int
    """Samples from which those that train are drawn: all that do not validate."""
    validation: int
    steps: int
    """Optimizer steps in an epoch; an incomplete last batch is left out."""
    pass_steps: int
    """Optimizer steps in which each sample that trains occurs once."""
    total_steps: int
    """Optimizer steps of the training."""

    @property
    def epochs(self) -> int:
        """Epochs of the training, the last of which may be shorter."""
        return math.ceil(self.total_steps / self.steps)

    @property
    def last_epoch(self) -> float:
        """Share of its steps that the last epoch has, above 0 and at most 1."""
        return self.total_steps / self.steps - self.epochs + 1


def split(spec: TrainSpec, info: DatasetInfo) -> Split:
    """Return the split of a data set under a spec.

    Raises:
        InvalidConfig: nothing would be left to train on, the batch is larger than the training samples or than an
            epoch, or more samples or steps are asked for than there are.
    """
    held_out = spec.validation_samples
    if held_out is None:
        held_out = info.validation_count
    if held_out is None:
        held_out = min(DEFAULT_VALIDATION, info.train_count // 10)
    available = info.train_count - held_out
    if available < 1:
        raise InvalidConfig(
            f"validation_samples is {held_out}, but {info.name} has {info.train_count} training samples; "
            f"use at most {info.train_count - 1}",
            field="validation_samples",
        )
    for field, asked in (("batch_size", spec.batch_size), ("train_samples", spec.train_samples)):
        if asked is not None and asked > available:
            raise InvalidConfig(
                f"{field} is {asked}, but {info.name} has {available} samples to train on; use at most {available}",
                field=field,
            )
    train = spec.train_samples or available
    check_lengths(spec, train)
    steps = (spec.epoch_samples or train) // spec.batch_size
    total = spec.max_steps or spec.epochs * steps
    return Split(
        train=train, available=available, validation=held_out, steps=min(steps, total),
        pass_steps=train // spec.batch_size, total_steps=total,
    )  # fmt: skip


def default_batch(info: DatasetInfo, usual: int) -> int:
    """Return the batch of a job that names none: `usual`, halved while an epoch has fewer than `LEAST_STEPS` steps."""
    train, batch = info.train_count - (info.validation_count or 0), usual
    while batch > SMALLEST_BATCH and train < LEAST_STEPS * batch:
        batch //= 2
    return min(batch, train)
