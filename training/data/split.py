"""Which of the training samples train, which validate, and how many steps that makes; torch-free."""

from dataclasses import dataclass

from training.config.spec import TrainSpec
from training.data.dataset_info import DatasetInfo
from training.errors import InvalidConfig

DEFAULT_VALIDATION = 5_000
"""Training samples held out when the spec does not say; a tenth of the training set where that is fewer."""


@dataclass(frozen=True, slots=True)
class Split:
    """How many of the training samples train, and how many (the last ones) validate."""

    train: int
    validation: int
    steps: int
    """Optimizer steps in an epoch; an incomplete last batch is left out."""
    pass_steps: int
    """Optimizer steps in which each sample occurs once; as many as in an epoch where `epoch_samples` is not given."""


def split(spec: TrainSpec, info: DatasetInfo) -> Split:
    """Return the split of a data set under a spec.

    Raises:
        InvalidConfig: nothing would be left to train on, or the batch is larger than the training samples or than an
            epoch.
    """
    held_out = spec.validation_samples
    if held_out is None:
        held_out = min(DEFAULT_VALIDATION, info.train_count // 10)
    train = info.train_count - held_out
    if train < 1:
        raise InvalidConfig(
            f"validation_samples is {held_out}, but {info.name} has {info.train_count} training samples; "
            f"use at most {info.train_count - 1}",
            field="validation_samples",
        )
    if spec.batch_size > train:
        raise InvalidConfig(
            f"batch_size is {spec.batch_size}, but {info.name} has {train} samples to train on; use at most {train}",
            field="batch_size",
        )
    samples = train if spec.epoch_samples is None else spec.epoch_samples
    if spec.batch_size > samples:
        raise InvalidConfig(
            f"epoch_samples is {samples}, less than a batch of {spec.batch_size}; use at least {spec.batch_size}",
            field="epoch_samples",
        )
    return Split(
        train=train, validation=held_out, steps=samples // spec.batch_size, pass_steps=train // spec.batch_size
    )
