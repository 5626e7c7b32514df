"""The training loop: epochs of steps, validation, early stopping, the best weights, one final test."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import torch
from pydantic import JsonValue
from torch import Tensor

from training.artifacts.predictions import room
from training.checkpoints.checkpointer import Keeper
from training.config.spec import TrainSpec
from training.data.batches import Batches
from training.data.dataset_store import Store
from training.data.split import split
from training.errors import Cancelled
from training.loop.evaluate import Score, evaluate
from training.loop.prediction import Prediction
from training.loop.prediction_monitor import Reality
from training.loop.train_state import Course, EpochDone, diverged
from training.loop.train_step import TrainStep
from training.loop.tuning.threads import AMPLE, Adapter
from training.process.journal import Report
from training.system.interference import Machine
from training.system.reference_workload import gauge
from training.system.resources import MemoryUse

WINDOW_SECONDS: Final = 0.5
"""Of the windows of steps from which the plan is adapted."""
RARER_AFTER: Final = 2.5
"""Seconds after which a progress report has one window more; what a report costs shall be lost in what it tells of."""
MOST_WINDOWS: Final = 4
"""Of a progress report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What a training ends with; its step holds the best weights."""

    epochs: tuple[EpochDone, ...]
    best_epoch: int
    stopped_early: bool
    test: Score
    probabilities: Tensor | None
    """What the best weights say of each test sample, float32 [N, classes]; None where that would be too much."""

    @property
    def train_seconds(self) -> float:
        """Wall time of all epochs, validation included, the final test apart."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def samples_per_s(self) -> float:
        """Training samples per second over all epochs, validation apart."""
        trained = sum(epoch.samples_per_s * epoch.train_seconds for epoch in self.epochs)
        return trained / sum(epoch.train_seconds for epoch in self.epochs)


def fit(
    step: TrainStep, store: Store, report: Report, should_stop: Callable[[], bool], course: Course, keeper: Keeper,
    prediction: Prediction | None = None,
) -> Fitted:  # fmt: skip
    """Train `step` on `store` from where `course` stands, and score the best weights once on the test set.

    What is measured is held against `prediction`, and the plan adapted where it shows to be too slow.

    Raises:
        Diverged: the loss is no longer a finite number, or what a checkpoint would keep.
        Cancelled: `should_stop` said so; it is asked after every step, and a checkpoint is made first.
    """
    spec, info = step.spec, store.info
    batches = Batches(store, spec, step.plan)
    machine = Machine()
    started = time.perf_counter()
    reality = Reality(prediction, step.plan, report, machine, gauge)
    memory = MemoryUse()
    used: int | None = None
    adapter = Adapter(step, report, prediction, machine)

    def window_done(window: Window) -> None:
        nonlocal used
        window.close()
        reporting = window.report_due()
        if reporting or used is None or used >= AMPLE * memory.limit:  # else it can wait
            used = memory.bytes()
        if reporting:
            figures = window.report(step.take_hits())
            report.write("progress", {**figures, "used_memory_mb": None if used is None else used >> 20})
        reality.window(course.epoch + 1, window.seconds, window.step_seconds)
        changed = adapter.window(
            len(window.step_seconds), window.seconds, None if used is None else used / memory.limit
        )
        if changed is not None:
            reality.adapted(changed)

    while not course.over(spec):
        reality.begin_epoch(course.step)
        _train_epoch(step, batches, should_stop, keeper, Window(step, course, started), window_done)
        began = time.perf_counter()
        step.lap("other")
        score = _validate(step, store, course)
        step.lap("validation")
        done = EpochDone(
            epoch=course.epoch + 1,
            loss=course.loss / course.steps,
            val_acc=score.accuracy if score else None,
            val_loss=score.loss if score else None,
            samples_per_s=course.steps * spec.batch_size / course.seconds,
            seconds=course.seconds + time.perf_counter() - began,
            train_seconds=course.seconds,
        )
        course.end_epoch(done)
        report.write("epoch", asdict(done), durable=True)
        reality.epoch(done, course.steps)
        step.lap("other")
        if course.best_epoch == done.epoch:
            step.keep_best()
        if keeper.worthwhile() or course.over(spec):
            keeper.keep(course)
        step.lap("checkpoint")
    step.restore_best()
    probabilities = room(info.test_count, info.classes)
    test = evaluate(step, store.test_images, store.test_labels, info.mean, info.std, probabilities)
    _see_that_finite("test", test.loss, course.best_epoch * course.steps, spec)
    return Fitted(
        epochs=tuple(course.history), best_epoch=course.best_epoch,
        stopped_early=course.epoch < spec.epochs, test=test, probabilities=probabilities,
    )  # fmt: skip


def _train_epoch(
    step: TrainStep,
    batches: Batches,
    should_stop: Callable[[], bool],
    keeper: Keeper,
    window: "Window",
    window_done: Callable[["Window"], None],
) -> None:
    """Run what is left of the epoch under way; `window_done` closes each window that is due."""
    course = window.course
    steps = step.spec.epochs * course.steps
    for images, labels in batches.of(course.epoch, course.step):
        step.lap("data")
        window.add(step.run(images, labels, step.rate(course.position, steps, course.steps)))
        if should_stop():
            keeper.keep_now(window.settled())
            raise Cancelled(f"stopped after step {course.position} of {steps}, as asked")
        if window.due():
            window_done(window)
        step.lap("other")
        if keeper.due():
            keeper.keep(window.settled())
        step.lap("checkpoint")
    window.settled()


def _validate(step: TrainStep, store: Store, course: Course) -> Score | None:
    """Score the model on the validation samples, if there are any."""
    held_out = split(step.spec, store.info).validation
    if not held_out:
        return None
    images, labels = store.train_images[-held_out:], store.train_labels[-held_out:]
    score = evaluate(step, images, labels, store.info.mean, store.info.std)
    _see_that_finite("validation", score.loss, course.position, step.spec)
    return score


def _see_that_finite(which: str, loss: float, steps: int, spec: TrainSpec) -> None:
    if not math.isfinite(loss):
        raise diverged(f"the {which} loss is {loss}", steps, spec)


class Window:
    """Speed since the window before, and loss since the last report; it is read only when somebody wants to know it."""

    def __init__(self, step: TrainStep, course: Course, started: float) -> None:
        """Begin with the rest of an epoch, in a training that this process began at `started`."""
        self.course = course
        self._spec = step.spec
        self._losses: list[Tensor] = []
        """Of the steps since they were read last, each where it was computed."""
        self._loss_before, self._first = course.loss, course.step
        self._seconds_before = course.seconds
        self._started = started
        self._entered = self._began = self._reported = self._stepped = time.perf_counter()
        self._windows = 0
        """Since the last report."""
        self._steps: list[float] = []
        self.step_seconds: Sequence[float] = ()
        """Of each step of the window that was closed last."""
        self.seconds = 0.0
        """Of all of that window."""

    def add(self, loss: Tensor) -> None:
        """Count one step's mean loss."""
        self._losses.append(loss)
        self.course.step += 1
        now = time.perf_counter()
        self._steps.append(now - self._stepped)
        self._stepped = now

    def due(self) -> bool:
        """Whether the window is over after the step just counted."""
        return self._epoch_is_over() or time.perf_counter() - self._began >= WINDOW_SECONDS

    def close(self) -> None:
        """End the window, and start the next."""
        now = time.perf_counter()
        self.seconds, self.step_seconds = now - self._began, self._steps
        self._began, self._steps = now, []
        self._windows += 1

    def report_due(self) -> bool:
        """Whether somebody should hear of the windows since the last report."""
        windows = min(1 + (self._began - self._started) // RARER_AFTER, MOST_WINDOWS)
        return self._epoch_is_over() or self._windows >= windows

    def report(self, hits: int) -> dict[str, JsonValue]:
        """Return the figures of the steps since the last report; raises `Diverged`.

        `hits` is how many of their samples were recognized as they were trained on.
        """
        course, now = self.settled(), self._began
        steps, seconds, loss = course.step - self._first, now - self._reported, course.loss - self._loss_before
        self._loss_before, self._first, self._reported, self._windows = course.loss, course.step, now, 0
        return {
            "epoch": course.epoch + 1,
            "epochs": self._spec.epochs,
            "step": course.step,
            "steps": course.steps,
            "loss": loss / steps,
            "accuracy": hits / (steps * self._spec.batch_size),
            "samples_per_s": steps * self._spec.batch_size / seconds,
            "eta_s": (self._spec.epochs * course.steps - course.position) * seconds / steps,
        }

    def settled(self) -> Course:
        """Bring loss and seconds of the course up to date, and return it; raises `Diverged`."""
        course = self.course
        if self._losses:
            # One sum, step by step, whatever the windows and checkpoints: the epoch's loss depends on neither.
            for loss in torch.stack(self._losses).tolist():  # sum() would round otherwise from Python 3.12 on
                course.loss += loss
            self._losses.clear()
        course.seconds = self._seconds_before + time.perf_counter() - self._entered
        _see_that_finite("training", course.loss, course.position, self._spec)
        return course

    def _epoch_is_over(self) -> bool:
        return self.course.step == self.course.steps
