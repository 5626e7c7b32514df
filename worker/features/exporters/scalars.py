"""Scalars of TensorBoard and MLflow: tags, steps, and what a restarted training process repeats."""

from collections.abc import Iterator
from dataclasses import dataclass

from preflight.wire import AnyEvent, EpochDone, Progress, TrainingDone


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value of a curve."""

    tag: str
    step: int
    """Global optimizer step, from 1; for a value of an epoch, the epoch's number from 1."""
    value: float


def scalars_of(event: AnyEvent) -> Iterator[Scalar]:
    """Yield the scalars of an event."""
    match event:
        case Progress():
            step = global_step(event)
            yield Scalar("train/loss", step, event.loss)
            yield Scalar("train/accuracy", step, event.accuracy)
            yield Scalar("train/samples_per_s", step, event.samples_per_s)
        case EpochDone():
            figures = {"accuracy": event.val_acc, "loss": event.val_loss, "macro_f1": event.val_macro_f1}
            for tag, value in figures.items():
                if value is not None:
                    yield Scalar(f"validation/{tag}", event.epoch, value)
        case TrainingDone():
            yield Scalar("test/accuracy", event.epochs, event.test_accuracy)
            yield Scalar("test/loss", event.epochs, event.test_loss)
            if event.macro_f1 is not None:
                yield Scalar("test/macro_f1", event.epochs, event.macro_f1)


def global_step(event: Progress) -> int:
    """Return the number of optimizer steps done."""
    return (event.epoch - 1) * event.steps + event.step if event.train_steps is None else event.train_steps


def _epoch_steps(event: Progress) -> int:
    """Return the steps of a whole epoch; that of the event may be a last one with fewer."""
    return (global_step(event) - event.step) // (event.epoch - 1) if event.epoch > 1 else event.steps


class ResumeStep:
    """Counts the steps that a restarted training process keeps: a killed one trained beyond its last checkpoint."""

    def __init__(self) -> None:
        self._checkpoint = (0, 0)
        self._is_first = False

    def start(self) -> None:
        """Note that a training process starts."""
        self._checkpoint, self._is_first = (0, 0), True

    def resume(self, epochs: int, steps: int) -> None:
        """Set the checkpoint of the process: after `epochs`, and `steps` of the next."""
        self._checkpoint = epochs, steps

    def steps_kept(self, event: Progress) -> int | None:
        """Return the global step of the checkpoint, at the first progress of a process; None at every other."""
        if not self._is_first:
            return None
        self._is_first = False
        epochs, steps = self._checkpoint
        return epochs * _epoch_steps(event) + steps
