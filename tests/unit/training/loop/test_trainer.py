"""The training loop on real digits: what it learns, reports, keeps, and when it stops."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue
from support.worker.records import number
from torch import Tensor

from preflight.container.resources import MemoryUse
from preflight.contract.plan import Plan, Precision
from preflight.contract.spec import TrainSpec
from preflight.errors import ChildStopped, Diverged, InvalidConfig
from preflight.files.journal import JournalReader, JournalWriter, Record
from training.checkpoints.checkpointer import Checkpointer
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import PreparedDataset, open_dataset
from training.data.split import split
from training.loop.evaluate import evaluate
from training.loop.progress import ProgressObserver
from training.loop.trainer import FitResult, fit
from training.step.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("one_torch_thread")

PRECISIONS = ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)]
"""Without instructions for bfloat16 a training in it takes a minute."""
SPEC = TrainSpec(dataset="digits", model="cnn", epochs=3, batch_size=64, deterministic=True)
PLAN = Plan(threads=1, micro_batch=64)
RUN = "fit"


@pytest.fixture
def store(digits_store: DatasetInfo) -> PreparedDataset:
    return open_dataset(digits_store.path)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a training ended with."""

    fitted: FitResult
    step: TrainStep

    @property
    def weights(self) -> dict[str, Tensor]:
        return self.step.model.state_dict()


class Recorded:
    """A training whose records went through a real journal."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "journal"

    def fit(
        self,
        spec: TrainSpec,
        store: PreparedDataset,
        plan: Plan = PLAN,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Outcome:
        self._path.unlink(missing_ok=True)
        step = TrainStep(spec, plan, store.info.shape, store.info.classes)
        with JournalWriter(self._path, RUN) as journal, Checkpointer(step, store.info, journal) as checkpointer:
            observer = ProgressObserver(step, checkpointer.resume(()), journal)
            return Outcome(fit(step, store, observer, should_stop, checkpointer), step)

    def records(self, kind: str) -> list[dict[str, JsonValue]]:
        found: list[Record] = JournalReader(self._path, RUN).read()
        return [record.payload for record in found if record.kind == kind]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def equal(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_learns(recorded: Recorded, store: PreparedDataset, precision: Precision) -> None:
    """Three epochs over 1,350 digits reach 90 % on the test set, in either precision."""
    fitted = recorded.fit(SPEC, store, dataclasses.replace(PLAN, precision=precision)).fitted
    assert fitted.test.accuracy >= 0.9
    assert fitted.test.samples == 297
    assert (len(fitted.epochs), fitted.stopped_early) == (3, False)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_it_repeats_itself_to_the_bit(recorded: Recorded, store: PreparedDataset, precision: Precision) -> None:
    """The same spec and plan, of two threads, give the same weights and scores again."""
    plan = dataclasses.replace(PLAN, threads=2, micro_batch=450, precision=precision)
    torch.set_num_threads(plan.threads)
    spec = dataclasses.replace(SPEC, epochs=1, batch_size=450)
    first, second = recorded.fit(spec, store, plan), recorded.fit(spec, store, plan)
    assert equal(first.weights, second.weights)
    assert first.fitted.test == second.fitted.test


def test_another_seed_gives_other_weights(recorded: Recorded, store: PreparedDataset) -> None:
    """The seed decides: what repeats above is no constant."""
    short = dataclasses.replace(SPEC, epochs=1)
    first, second = (recorded.fit(dataclasses.replace(short, seed=seed), store) for seed in (0, 1))
    assert not equal(first.weights, second.weights)


def test_patience_ends_a_training_that_no_longer_improves(recorded: Recorded, store: PreparedDataset) -> None:
    """It stops when the best validation is as many epochs ago as patience says, and goes back to that epoch."""
    held_out = split(SPEC, store.info).validation
    labels = store.train_labels.clone()
    labels[-held_out:] = (labels[-held_out:] + 1) % 10  # so that the more it learns, the worse it validates
    misled = dataclasses.replace(store, train_labels=labels)
    outcome = recorded.fit(dataclasses.replace(SPEC, epochs=30, patience=2, schedule="constant"), misled)
    assert outcome.fitted.stopped_early
    assert len(outcome.fitted.epochs) == outcome.fitted.best_epoch + 2 < 30
    assert_best_is_kept(outcome, misled)


def assert_best_is_kept(outcome: Outcome, store: PreparedDataset) -> None:
    """See that the weights validate exactly as the best epoch did, and as no other."""
    fitted, step = outcome.fitted, outcome.step
    validated = [(epoch.val_acc, epoch.val_loss) for epoch in fitted.epochs]
    best = max((number(accuracy), -number(loss), -epoch) for epoch, (accuracy, loss) in enumerate(validated, 1))
    assert fitted.best_epoch == -best[2]
    held_out = split(step.spec, store.info).validation
    images, labels = store.train_images[-held_out:], store.train_labels[-held_out:]
    now = evaluate(step, images, labels, store.info.mean, store.info.std)
    alike = [epoch for epoch, scores in enumerate(validated, 1) if scores == (now.accuracy, now.loss)]
    assert alike == [fitted.best_epoch]


def test_without_validation_the_last_epoch_is_kept(recorded: Recorded, store: PreparedDataset) -> None:
    """Every sample trains, no accuracy is reported, patience has nothing to go by, and nothing is thrown away."""
    fitted = recorded.fit(dataclasses.replace(SPEC, epochs=2, validation_samples=0, patience=1), store).fitted
    assert [(epoch.val_acc, epoch.val_loss) for epoch in fitted.epochs] == [(None, None)] * 2
    assert (fitted.best_epoch, fitted.stopped_early) == (2, False)
    assert recorded.records("progress")[-1]["steps"] == 1500 // 64
    assert number(fitted.test.accuracy) > 0.5


def test_the_test_set_decides_nothing(recorded: Recorded, store: PreparedDataset) -> None:
    """Other test images and labels give another test score, and the same weights, epochs and records."""
    spec = dataclasses.replace(SPEC, patience=1)
    one = recorded.fit(spec, store)
    images, labels = store.test_images.flip(3), (store.test_labels + 1) % 10
    other = recorded.fit(spec, dataclasses.replace(store, test_images=images, test_labels=labels))
    assert equal(one.weights, other.weights)
    assert one.fitted.best_epoch == other.fitted.best_epoch
    for mine, theirs in zip(one.fitted.epochs, other.fitted.epochs, strict=True):
        assert (mine.loss, mine.val_acc, mine.val_loss) == (theirs.loss, theirs.val_acc, theirs.val_loss)
    assert other.fitted.test.accuracy < 0.5 < one.fitted.test.accuracy


ABSURD = dataclasses.replace(SPEC, learning_rate=100.0, weight_decay=10.0)
ONE_STEP = dataclasses.replace(ABSURD, epochs=30, batch_size=1350)
LAST_STEP = dataclasses.replace(ABSURD, epochs=1, batch_size=1500, validation_samples=0, schedule="constant")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ABSURD, r"training loss is (nan|inf) after step \d+; lower learning_rate \(now 100.0\) or set gradient"),
        (ONE_STEP, r"the validation loss is (nan|inf) after step \d+; lower learning_rate"),
        (LAST_STEP, r"the test loss is (nan|inf) after step 1; lower learning_rate"),
    ],
    ids=["amid an epoch", "one step an epoch", "the last step, without validation"],
)
def test_an_absurd_learning_rate_diverges_by_name(
    recorded: Recorded, store: PreparedDataset, spec: TrainSpec, message: str
) -> None:
    """A loss that is no number ends the training with the step, the rate and what to do, wherever it shows first."""
    with pytest.raises(Diverged, match=message):
        recorded.fit(spec, store, dataclasses.replace(PLAN, micro_batch=spec.batch_size))


def test_it_stops_after_the_step_at_which_it_is_asked_to(recorded: Recorded, store: PreparedDataset) -> None:
    """`should_stop` is asked once after each step; the 25th answer, in the second epoch, is the last."""
    asked = itertools.count(1)
    with pytest.raises(ChildStopped, match="stopped after step 25 of 63 by a signal"):
        recorded.fit(SPEC, store, should_stop=lambda: next(asked) >= 25)
    assert next(asked) == 26
    assert [record["epoch"] for record in recorded.records("epoch")] == [1]


def test_reports_become_rarer(recorded: Recorded, store: PreparedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a training that goes on for long each tells of four windows, here of a step; an epoch ends with one."""
    monkeypatch.setattr("training.loop.window.WINDOW_SECONDS", 0.0)
    monkeypatch.setattr("training.loop.window.RARER_AFTER", 1e-9)
    fitted = recorded.fit(SPEC, store).fitted
    progress = recorded.records("progress")
    assert [record["step"] for record in progress] == 3 * [4, 8, 12, 16, 20, 21]
    for done in fitted.epochs:
        losses = [number(record["loss"]) for record in progress if record["epoch"] == done.epoch]
        assert 4 * sum(losses[:-1]) + losses[-1] == pytest.approx(21 * done.loss)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("window", [0.0, 0.01, 1000.0], ids=["one per step", "some", "one per epoch"])
def test_windows_add_up_to_their_epoch(
    recorded: Recorded, store: PreparedDataset, monkeypatch: pytest.MonkeyPatch, window: float
) -> None:
    """Progress records have the documented fields, and their losses, weighted by steps, make the epoch's loss."""
    monkeypatch.setattr("training.loop.window.WINDOW_SECONDS", window)
    monkeypatch.setattr("training.loop.window.RARER_AFTER", math.inf)
    began = time.time()
    fitted = recorded.fit(SPEC, store).fitted
    progress = recorded.records("progress")
    first_step_at, *same = {number(record["first_step_at"]) for record in progress}
    assert same == []
    assert began < first_step_at < time.time()
    fields = [
        "accuracy", "epoch", "epochs", "eta_s", "first_step_at", "loss", "samples_per_s", "step", "steps",
        "train_steps",
    ]  # fmt: skip
    if MemoryUse().bytes() is not None:
        fields.append("used_memory_mib")
    for record in progress:
        assert list(record) == fields
        assert (record["epochs"], record["steps"]) == (3, 21)
        assert number(record["samples_per_s"]) > 0
        assert number(record["eta_s"]) >= 0
        assert 0 <= number(record["accuracy"]) <= 1
    assert number(progress[-1]["accuracy"]) > number(progress[0]["accuracy"])
    assert progress[-1]["eta_s"] == 0
    if window != 0.01:
        assert len(progress) == (3 if window else 63)
    for done in fitted.epochs:
        records = [record for record in progress if record["epoch"] == done.epoch]
        steps = [0, *(int(number(record["step"])) for record in records)]
        assert steps == sorted(set(steps))
        assert steps[-1] == 21
        total = sum(
            number(record["loss"]) * (after - before)
            for record, (before, after) in zip(records, itertools.pairwise(steps), strict=True)
        )
        assert done.loss == pytest.approx(total / 21, rel=1e-5)


def test_epoch_records_are_the_epochs(recorded: Recorded, store: PreparedDataset) -> None:
    """Each epoch's figures are recorded, and the whole training's follow from them."""
    fitted = recorded.fit(SPEC, store).fitted
    assert recorded.records("epoch") == [dataclasses.asdict(epoch) for epoch in fitted.epochs]
    assert [epoch.epoch for epoch in fitted.epochs] == [1, 2, 3]
    for epoch in fitted.epochs:
        assert 0 < epoch.train_seconds <= epoch.seconds
        assert epoch.samples_per_s == pytest.approx(21 * 64 / epoch.train_seconds)
    assert fitted.train_seconds == pytest.approx(sum(epoch.seconds for epoch in fitted.epochs))
    assert fitted.samples_per_s == pytest.approx(3 * 21 * 64 / sum(epoch.train_seconds for epoch in fitted.epochs))


def test_what_does_not_suit_the_data_set_is_refused_before_training(recorded: Recorded, store: PreparedDataset) -> None:
    """A batch larger than what is left to train on is an error that names the field, and nothing is recorded."""
    with pytest.raises(InvalidConfig) as caught:
        recorded.fit(dataclasses.replace(SPEC, batch_size=1351), store)
    assert caught.value.field == "batch_size"
    assert recorded.records("progress") == []
