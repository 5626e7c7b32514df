"""Training loop: epochs of steps, validation, early stopping, the best weights, one final test."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from preflight.contract.confidence import Confidence
from preflight.errors import ChildStopped, InvalidConfig
from preflight.files.journal import RecordWriter
from training.artifacts.confidence import tempered
from training.artifacts.loading import InitialWeights, average_weights
from training.artifacts.predictions import allocate_probabilities
from training.checkpoints.checkpointer import Checkpointer
from training.data.batches import Batches
from training.data.class_balance import class_weights
from training.data.dataset_store import PreparedDataset
from training.data.split import split
from training.loop.evaluate import Score, evaluate, evaluate_together, measure
from training.loop.progress import ProgressObserver
from training.loop.window import Window, require_finite
from training.step.train_state import EpochDone, TrainState
from training.step.train_step import TrainStep


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """Result of `fit`; the step holds the best weights."""

    epochs: tuple[EpochDone, ...]
    best_epoch: int
    stopped_early: bool
    test: Score
    probabilities: Tensor | None
    """Probabilities of each test sample by the best weights, float32 [N, classes]; None: the test set is too large."""
    confidence: Confidence | None

    @property
    def train_seconds(self) -> float:
        """Wall time of all epochs, validation included, without the final test."""
        return sum(epoch.seconds for epoch in self.epochs)

    @property
    def samples_per_s(self) -> float:
        """Training samples per second over all epochs, without validation."""
        trained = sum(epoch.samples_per_s * epoch.train_seconds for epoch in self.epochs)
        return trained / sum(epoch.train_seconds for epoch in self.epochs)


def fit(
    step: TrainStep, store: PreparedDataset, observer: ProgressObserver, should_stop: Callable[[], bool],
    checkpointer: Checkpointer,
) -> FitResult:  # fmt: skip
    """Train `step` on `store` from the position of the observed state, and score the best weights once on the test set.

    Raises as `run_epochs`.
    """
    run_epochs(step, store, observer, should_stop, checkpointer)
    state = observer.state
    step.restore_best()
    if step.origin is not None:
        _average(step, step.origin, observer.report)
    info, confidence = store.info, measure(step, store)
    probabilities = allocate_probabilities(info.test_count, info.classes)
    test = evaluate(step, store.test_images, store.test_labels, info.mean, info.std, probabilities)
    require_finite("test", test.loss, state.best_epoch * state.steps, step.spec)
    if probabilities is not None and confidence is not None:
        probabilities = torch.from_numpy(tempered(probabilities.numpy(), confidence.temperature))
    return FitResult(
        epochs=tuple(state.history), best_epoch=state.best_epoch,
        stopped_early=state.epoch < state.total_epochs(step.spec), test=test, probabilities=probabilities,
        confidence=confidence,
    )  # fmt: skip


def _average(step: TrainStep, origin: InitialWeights, report: RecordWriter) -> None:
    """Average the best weights with those that the training started from; warn where their file is gone."""
    try:
        average_weights(step.model, origin)
    except InvalidConfig as error:
        report.write("warning", {"message": f"{error.message}; the weights are those of the last step, not the mean"})
    step.snapshot_best()


def run_epochs(
    step: TrainStep, store: PreparedDataset, observer: ProgressObserver, should_stop: Callable[[], bool],
    checkpointer: Checkpointer,
) -> None:  # fmt: skip
    """Train `step` on `store` from the position of the observed state to the end, as all ranks of a group do together.

    Raises:
        Diverged: the loss, or a tensor of a checkpoint, is no longer finite.
        ChildStopped: `should_stop` said so; it is asked when all ranks have the same weights, as after every step where
            they exchange gradients, and a checkpoint is made first.
    """
    spec, state = step.spec, observer.state
    weights = class_weights(spec, store.info, store.train_labels)
    step.class_weights = None if weights is None else weights.to(step.device)
    batches = Batches(store, spec, step.plan, step.group)
    started = time.perf_counter()
    while not state.is_finished(spec):
        observer.begin_epoch()
        _train_epoch(step, batches, should_stop, checkpointer, Window(step, state, started), observer)
        done = _end_epoch(step, store, state)
        observer.report.write("epoch", asdict(done), durable=True)
        observer.observe_epoch(done)
        step.end_phase("other")
        if state.best_epoch == done.epoch:
            step.snapshot_best()
        if checkpointer.affordable() or state.is_finished(spec):
            checkpointer.save(state)
        step.end_phase("checkpoint")
    step.group.finish()


def _train_epoch(
    step: TrainStep, batches: Batches, should_stop: Callable[[], bool], checkpointer: Checkpointer, window: Window,
    observer: ProgressObserver,
) -> None:  # fmt: skip
    """Run the remaining steps of an epoch."""
    state = window.state
    steps = state.total_steps(step.spec)
    for images, labels in batches.of(state.epoch, state.step, state.epoch_steps):
        step.end_phase("data")
        window.add(step.run(images, labels, step.rate(state.position, steps, state.steps)))
        observer.end_step()
        if should_stop():
            checkpointer.save_sync(window.sync_loss())
            raise ChildStopped(f"stopped after step {state.position} of {steps} by a signal")
        if window.due():
            observer.observe_window(window)
        step.end_phase("other")
        if checkpointer.due():
            checkpointer.save(window.sync_loss())
        step.end_phase("checkpoint")
    observer.end_steps()
    window.sync_loss()


def _end_epoch(step: TrainStep, store: PreparedDataset, state: TrainState) -> EpochDone:
    """Validate, and close the epoch in `state`."""
    began = time.perf_counter()
    step.end_phase("other")
    score = _validate(step, store, state)
    step.end_phase("validation")
    done = EpochDone(
        epoch=state.epoch + 1, loss=state.loss / state.step,
        val_acc=score.accuracy if score else None, val_loss=score.loss if score else None,
        val_macro_f1=score.macro_f1 if score else None,
        samples_per_s=state.step * step.spec.batch_size / state.seconds,
        seconds=state.seconds + time.perf_counter() - began, train_seconds=state.seconds,
    )  # fmt: skip
    state.end_epoch(done)
    return done


def _validate(step: TrainStep, store: PreparedDataset, state: TrainState) -> Score | None:
    """Score the model on the validation samples, if there are any."""
    held_out = split(step.spec, store.info).validation
    if not held_out:
        return None
    images, labels = store.train_images[-held_out:], store.train_labels[-held_out:]
    score = evaluate_together(step, images, labels, store.info.mean, store.info.std)
    require_finite("validation", score.loss, state.position, step.spec)
    return score
