"""State of a training without its tensors: the numbers in a checkpoint."""

import math
from dataclasses import field
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT, Metric, TrainSpec
from preflight.errors import Diverged

Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class EpochDone:
    """Figures of one epoch."""

    epoch: Annotated[int, Field(ge=1)]
    """Number of the epoch, from 1."""
    loss: float
    """Mean training loss."""
    val_acc: float | None
    """Validation accuracy 0..1; None without a validation split."""
    val_loss: float | None
    val_macro_f1: float | None = None
    """Mean of the F1 scores of the classes; None without a validation split, and in records up to 0.26.0."""
    samples_per_s: float
    """Training samples per second, without validation."""
    seconds: Seconds
    """Wall time of the whole epoch, validation included."""
    train_seconds: Seconds

    def rank(self, metric: Metric) -> tuple[float, float]:
        """Return the key that ranks epochs: the metric, then the loss; without validation the later one is better."""
        figure = self.val_acc if metric == "accuracy" else self.val_macro_f1
        if figure is None or self.val_loss is None:
            return 0.0, float(self.epoch)
        return figure, -self.val_loss


@dataclass(slots=True, kw_only=True, config=STRICT)
class TrainState:
    """Progress of a training; advanced by `fit`."""

    steps: Annotated[int, Field(ge=1)]
    """Optimizer steps in an epoch."""
    max_steps: Annotated[int, Field(ge=1)] | None = None
    """Optimizer steps after which the training ends, as the spec has it."""
    metric: Metric = "accuracy"
    """Metric by which epochs are compared, as the spec has it."""
    step: Count = 0
    """Steps done of the epoch under way; all of them until it is validated."""
    loss: float = 0.0
    """Sum of the mean losses of those steps."""
    seconds: Seconds = 0.0
    """Wall time of those steps."""
    history: list[EpochDone] = field(default_factory=list)
    """The epochs that are done, validation included."""

    def __post_init__(self) -> None:
        if self.step > self.epoch_steps:
            raise ValueError(f"step is {self.step}, but the epoch has {self.epoch_steps}")
        if [done.epoch for done in self.history] != list(range(1, len(self.history) + 1)):
            raise ValueError("history does not count its epochs from 1")

    @property
    def epoch(self) -> int:
        """Epochs done; as a number from 0, the epoch under way."""
        return len(self.history)

    @property
    def position(self) -> int:
        """Optimizer steps done in all."""
        done = self.epoch * self.steps + self.step
        return done if self.max_steps is None else min(done, self.max_steps)

    @property
    def epoch_steps(self) -> int:
        """Optimizer steps in the epoch under way, of which the last one may have fewer; 0 after it."""
        return self.steps_of(self.epoch)

    def steps_of(self, epoch: int) -> int:
        """Return the optimizer steps in an epoch, from 0."""
        if self.max_steps is None:
            return self.steps
        return max(0, min(self.steps, self.max_steps - epoch * self.steps))

    def total_steps(self, spec: TrainSpec) -> int:
        """Return the optimizer steps of the training, unless patience ends it."""
        return spec.epochs * self.steps if self.max_steps is None else self.max_steps

    def total_epochs(self, spec: TrainSpec) -> int:
        """Return the epochs of the training, unless patience ends it."""
        return math.ceil(self.total_steps(spec) / self.steps)

    @property
    def best_epoch(self) -> int:
        """Number of the best epoch so far, from 1, the earlier of two that are as good; 0 before the first."""
        return max(self.history, key=lambda done: done.rank(self.metric)).epoch if self.history else 0

    def is_finished(self, spec: TrainSpec) -> bool:
        """Whether no epoch is left, or patience with the last ones has ended."""
        epochs = self.total_epochs(spec)
        patience = epochs if spec.patience is None else spec.patience
        return self.epoch >= epochs or self.epoch - self.best_epoch >= patience

    def end_epoch(self, done: EpochDone) -> None:
        """Close the epoch under way with its figures."""
        self.history.append(done)
        self.step, self.loss, self.seconds = 0, 0.0, 0.0


def divergence_error(what: str, steps: int, spec: TrainSpec) -> Diverged:
    """Return the error to raise where `what`, a clause, is so after `steps` steps."""
    return Diverged(f"{what} after step {steps}; lower learning_rate (now {spec.learning_rate}) or set gradient_clip")
