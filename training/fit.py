"""The training loop: epochs of steps, validation, early stopping, the best weights, one final test."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, Protocol

import torch
from pydantic import JsonValue
from torch import Tensor

from training.batches import Batches, Split, split
from training.errors import Cancelled, Diverged
from training.evaluate import Score, evaluate
from training.plan import Plan
from training.spec import TrainSpec
from training.step import TrainStep
from training.store import Store

WINDOW_SECONDS: Final = 0.5
"""Between two progress reports: often enough to watch, rare enough to cost nothing."""


class Report(Protocol):
    """Where the loop says what happens; a journal in a child process."""

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        """Take one record."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDone:
    """Figures of one epoch."""

    epoch: int
    """From 1."""
    loss: float
    """Mean training loss."""
    val_acc: float | None
    """Validation accuracy 0..1; None without a validation split."""
    val_loss: float | None
    samples_per_s: float
    """Training samples per second, validation apart."""
    seconds: float
    """Wall time of the whole epoch, validation included."""
    train_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What a training ends with; the step holds the best weights."""

    step: TrainStep
    epochs: tuple[EpochDone, ...]
    best_epoch: int
    stopped_early: bool
    test: Score

    @property
    def train_seconds(self) -> float:
        """Wall time of all epochs, validation included, the final test apart."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def samples_per_s(self) -> float:
        """Training samples per second over all epochs, validation apart."""
        trained = sum(epoch.samples_per_s * epoch.train_seconds for epoch in self.epochs)
        return trained / sum(epoch.train_seconds for epoch in self.epochs)


def fit(spec: TrainSpec, plan: Plan, store: Store, report: Report, should_stop: Callable[[], bool]) -> Fitted:
    """Train `spec` on `store` under `plan`, and score the best weights once on the test set.

    Raises:
        InvalidConfig: model, batch size or validation split do not suit the data set.
        Diverged: the loss is no longer a finite number.
        Cancelled: `should_stop` said so; it is asked after every step.
    """
    info = store.info
    parts = split(spec, info)
    step = TrainStep(spec, plan, info.shape, info.classes)
    batches = Batches(store, spec, plan)
    best = Best()
    epochs: list[EpochDone] = []
    for epoch in range(spec.epochs):
        began = time.perf_counter()
        loss = _train_epoch(step, batches, parts, epoch, report, should_stop)
        train_seconds = time.perf_counter() - began
        score = _validate(step, store, parts, (epoch + 1) * parts.steps)
        done = EpochDone(
            epoch=epoch + 1,
            loss=loss,
            val_acc=score.accuracy if score else None,
            val_loss=score.loss if score else None,
            samples_per_s=parts.steps * spec.batch_size / train_seconds,
            seconds=time.perf_counter() - began,
            train_seconds=train_seconds,
        )
        epochs.append(done)
        report.write("epoch", asdict(done), durable=True)
        best.offer(epoch + 1, score, step)
        if spec.patience is not None and epoch + 1 - best.epoch >= spec.patience:
            break
    best.restore(step)
    test = evaluate(step, store.test_images, store.test_labels, info.mean, info.std)
    _see_that_finite("test", test.loss, best.epoch * parts.steps, spec)
    return Fitted(
        step=step, epochs=tuple(epochs), best_epoch=best.epoch,
        stopped_early=len(epochs) < spec.epochs, test=test,
    )  # fmt: skip


def _train_epoch(
    step: TrainStep,
    batches: Batches,
    parts: Split,
    epoch: int,
    report: Report,
    should_stop: Callable[[], bool],
) -> float:
    """Run one epoch (from 0) and return its mean training loss."""
    spec, steps = step.spec, step.spec.epochs * parts.steps
    window = Window(spec, epoch, parts.steps)
    for number, (images, labels) in enumerate(batches.of(epoch)):
        position = epoch * parts.steps + number
        loss = step.run(images, labels, step.rate(position, steps, parts.steps))
        window.add(loss)
        if should_stop():
            raise Cancelled(f"stopped after step {position + 1} of {steps}, as asked")
        if window.due(number + 1):
            report.write("progress", window.close(number + 1, step.take_hits()))
    return window.epoch_loss()


def _validate(step: TrainStep, store: Store, parts: Split, steps: int) -> Score | None:
    """Score the model after `steps` steps on the validation samples, if there are any."""
    if not parts.validation:
        return None
    images, labels = store.train_images[-parts.validation :], store.train_labels[-parts.validation :]
    score = evaluate(step, images, labels, store.info.mean, store.info.std)
    _see_that_finite("validation", score.loss, steps, step.spec)
    return score


def _see_that_finite(which: str, loss: float, steps: int, spec: TrainSpec) -> None:
    if not math.isfinite(loss):
        raise Diverged(
            f"the {which} loss is {loss} after step {steps}; "
            f"lower learning_rate (now {spec.learning_rate}) or set gradient_clip"
        )


class Window:
    """Loss and speed since the last progress report; the loss is read only when a window closes."""

    def __init__(self, spec: TrainSpec, epoch: int, steps: int) -> None:
        self._spec = spec
        self._epoch = epoch
        self._steps = steps
        self._began = time.perf_counter()
        self._first = 0
        self._window_loss = torch.zeros(())
        self._epoch_loss = 0.0

    def add(self, loss: Tensor) -> None:
        """Count one step's mean loss."""
        self._window_loss += loss

    def due(self, done: int) -> bool:
        """Whether a report is due after `done` steps of this epoch."""
        return done == self._steps or time.perf_counter() - self._began >= WINDOW_SECONDS

    def close(self, done: int, hits: int) -> dict[str, JsonValue]:
        """Return the window's figures after `done` steps, and start the next; raises `Diverged`.

        `hits` is how many of the window's samples were recognized as they were trained on.
        """
        now = time.perf_counter()
        steps, seconds = done - self._first, now - self._began
        total = float(self._window_loss)
        _see_that_finite("training", total, self._epoch * self._steps + done, self._spec)
        self._epoch_loss += total
        self._window_loss, self._began, self._first = torch.zeros(()), now, done
        left = (self._spec.epochs - self._epoch) * self._steps - done
        return {
            "epoch": self._epoch + 1,
            "epochs": self._spec.epochs,
            "step": done,
            "steps": self._steps,
            "loss": total / steps,
            "accuracy": hits / (steps * self._spec.batch_size),
            "samples_per_s": steps * self._spec.batch_size / seconds,
            "eta_s": left * seconds / steps,
        }

    def epoch_loss(self) -> float:
        """Return the mean loss of the epoch; the last window is closed at its last step."""
        return self._epoch_loss / self._steps


class Best:
    """The weights of the epoch that validated best; the last epoch's without validation."""

    def __init__(self) -> None:
        self.epoch = 0
        self._key = (-1.0, -math.inf)
        self._weights: dict[str, Tensor] = {}

    def offer(self, epoch: int, score: Score | None, step: TrainStep) -> None:
        """Keep the weights when `score` beats the best so far: accuracy first, then loss."""
        key = (score.accuracy, -score.loss) if score else (0.0, float(epoch))
        if key > self._key:
            self.epoch, self._key = epoch, key
            self._weights = {name: value.clone() for name, value in step.model.state_dict().items()}

    def restore(self, step: TrainStep) -> None:
        """Put the best weights back into the model."""
        step.model.load_state_dict(self._weights)
