"""What of a job is drawn as curves, and where on them: the same in TensorBoard and in MLflow."""

from collections.abc import Iterator
from dataclasses import dataclass

from worker.wire import AnyEvent, EpochDone, Progress, TrainingDone


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a curve."""

    tag: str
    step: int
    """Optimizer steps from the first on; for what is measured after an epoch, its number from 1."""
    value: float


def points(event: AnyEvent) -> Iterator[Point]:
    """Yield the points that an event adds to the curves."""
    match event:
        case Progress():
            step = position(event)
            yield Point("train/loss", step, event.loss)
            yield Point("train/accuracy", step, event.accuracy)
            yield Point("train/samples_per_s", step, event.samples_per_s)
        case EpochDone():
            for tag, value in (("validation/accuracy", event.val_acc), ("validation/loss", event.val_loss)):
                if value is not None:
                    yield Point(tag, event.epoch, value)
        case TrainingDone():
            yield Point("test/accuracy", event.epochs, event.test_accuracy)
            yield Point("test/loss", event.epochs, event.test_loss)


def position(event: Progress) -> int:
    """Return how many optimizer steps of the whole training are done."""
    return (event.epoch - 1) * event.steps + event.step
