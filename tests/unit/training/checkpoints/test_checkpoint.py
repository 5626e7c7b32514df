"""Checkpoints: a training that was interrupted ends as the undisturbed one, and what is damaged is passed over."""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import pickle
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from safetensors.torch import load_file, save_file
from support.files.damage import Harm, a_directory, a_pipe, flipped, huge, linked, truncated
from support.files.memory_files import container_memory
from support.worker.records import Records, number
from torch import Tensor, nn

from preflight.contract.plan import MemoryFormat, Plan
from preflight.contract.spec import Augmentation, TrainSpec
from preflight.errors import ChildStopped, Diverged
from preflight.files import atomic_files
from training.checkpoints.checkpointer import Checkpointer
from training.checkpoints.files import prune, stored_bytes, tensors_of
from training.checkpoints.format import CHECKPOINT, Checkpoint, InvalidCheckpoint, Origin, write
from training.checkpoints.resume import ResumePoint, find_resume_points
from training.checkpoints.schedule import SECONDS
from training.checkpoints.tensors import restore
from training.data.batches import Batches, EpochOrder
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import PreparedDataset, checksum, open_dataset
from training.data.prepare import prepare
from training.data.split import split
from training.loop.progress import ProgressObserver
from training.loop.trainer import fit
from training.models.factory import build
from training.step.train_state import EpochDone, TrainState
from training.step.train_step import TrainStep
from training.system import digests as digests_module
from training.system.digests import Digests
from training.system.safetensors_file import TensorView

pytestmark = pytest.mark.usefixtures("one_torch_thread")

TRAIN, HELD_OUT, TEST = 128, 32, 32
SPEC = TrainSpec(
    dataset="digits", model="cnn-small-valid", epochs=3, batch_size=32, validation_samples=HELD_OUT, deterministic=True
)
PLAN = Plan(threads=1, micro_batch=32)
STEPS = 12
"""Of `SPEC`: three epochs of four."""
EVERYTHING = Augmentation(
    rotate_degrees=10.0, translate=0.1, noise_probability=0.1, dots_probability=0.5, blur_sigma=0.5,
    erode_probability=0.25, dilate_probability=0.25,
)  # fmt: skip
AS_PICTURES = replace(
    EVERYTHING, random_resized_crop_scale=0.5, random_crop_padding=2, random_horizontal_flip=0.5, brightness=0.2,
    contrast=0.2,
)  # fmt: skip
FACTS: dict[str, JsonValue] = {"job_id": "a job", "resources": {"cores": 2}}


@pytest.fixture
def store(digits_store: DatasetInfo) -> PreparedDataset:
    """Return a small part of `digits`, on which even a large network takes a step in no time."""
    whole = open_dataset(digits_store.path)
    return replace(
        whole,
        info=replace(whole.info, train_count=TRAIN + HELD_OUT, test_count=TEST),
        train_images=whole.train_images[: TRAIN + HELD_OUT], train_labels=whole.train_labels[: TRAIN + HELD_OUT],
        test_images=whole.test_images[:TEST], test_labels=whole.test_labels[:TEST],
    )  # fmt: skip


@pytest.fixture
def immediate_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write each checkpoint before the training goes on, so that no epoch ends while one is being written."""
    submit = ThreadPoolExecutor.submit

    def submit_and_wait(executor: ThreadPoolExecutor, task: Callable[..., object], *arguments: object) -> object:
        future = submit(executor, task, *arguments)
        wait([future])
        return future

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_and_wait)


Fatal = Callable[[str, dict[str, JsonValue]], bool]


class FatalRecords(Records):
    """Breaks the training off, as a kill would, at the first record for which `fatal` is true."""

    def __init__(self, fatal: Fatal) -> None:
        super().__init__()
        self._fatal = fatal

    def write(self, kind: str, payload: dict[str, JsonValue], *, durable: bool = False) -> None:
        super().write(kind, payload, durable=durable)
        if self._fatal(kind, payload):
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a training ended with."""

    weights: dict[str, Tensor]
    epochs: list[EpochDone]
    records: Records
    steps: int
    """Run by this attempt."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job whose attempts train in this process, each with a directory of its own."""

    directory: Path
    store: PreparedDataset
    spec: TrainSpec = SPEC
    plan: Plan = PLAN
    seconds: float = 3600.0

    def step(self) -> TrainStep:
        return TrainStep(self.spec, self.plan, self.store.info.shape, self.store.info.classes)

    def run(
        self, attempt: int = 1, *, stop_after: int | None = None, fatal: Fatal = lambda kind, payload: False  # noqa: ARG005
    ) -> Outcome:  # fmt: skip
        """Train from the best checkpoint on, and stop after `stop_after` steps as a SIGTERM would make it."""
        place, asked = self.directory / str(attempt), itertools.count(1)
        place.mkdir(parents=True, exist_ok=True)
        records, step, info = FatalRecords(fatal), self.step(), self.store.info
        with Checkpointer(step, info, records, directory=place, seconds=self.seconds, facts=FACTS) as checkpointer:
            state = checkpointer.resume([found.path for found in self.found()])
            observer = ProgressObserver(step, state, records)
            done = fit(step, self.store, observer, lambda: next(asked) == stop_after, checkpointer)
        return Outcome(step.model.state_dict(), list(done.epochs), records, next(asked) - 1)

    def undisturbed(self) -> Outcome:
        return self.elsewhere("undisturbed").run()

    def interrupted(self, attempt: int, steps: int) -> None:
        with pytest.raises(ChildStopped):
            self.run(attempt, stop_after=steps)

    def found(self) -> list[ResumePoint]:
        """Return the usable checkpoints; there must be no others."""
        found, warnings = find_resume_points(self.directory, self.spec, self.store.info, Digests())
        assert warnings == []
        return found

    def elsewhere(self, name: str) -> "Job":
        return replace(self, directory=self.directory.parent / name)


@pytest.fixture
def job(tmp_path: Path, store: PreparedDataset) -> Job:
    return Job(tmp_path / "job", store)


def learned(outcome: Outcome) -> list[tuple[int, float, float | None, float | None]]:
    """Return what of the epochs does not depend on time."""
    return [(epoch.epoch, epoch.loss, epoch.val_acc, epoch.val_loss) for epoch in outcome.epochs]


def assert_same(some: Outcome, other: Outcome) -> None:
    """See that two trainings ended with the same weights, to the bit, and learned the same in each epoch."""
    assert some.weights.keys() == other.weights.keys()
    assert all(torch.equal(some.weights[name], other.weights[name]) for name in some.weights)
    assert learned(some) == learned(other)


LAST = Plan(threads=1, micro_batch=32, precision="bfloat16", memory_format="channels_last")
FLOAT32 = replace(LAST, precision="float32")
SGD = replace(SPEC, optimizer="sgd", learning_rate=0.05)
VARIANTS = {
    "adamw": (SPEC, PLAN),
    "sgd, in bfloat16 and channels_last": (SGD, LAST),
    "adamw, in channels_last, accumulated and augmented": (
        replace(SPEC, augmentation=EVERYTHING, gradient_clip=1.0),
        replace(FLOAT32, micro_batch=12),
    ),
    "muon, in channels_last": (replace(SPEC, optimizer="muon"), FLOAT32),
    "ended within an epoch, of few samples": (
        replace(SPEC, train_samples=96, epoch_samples=128, max_steps=10, augmentation=EVERYTHING),
        PLAN,
    ),
    "drawn from balanced classes, augmented": (replace(SPEC, sampler="balanced", augmentation=AS_PICTURES), PLAN),
    "by macro F1, with patience": (replace(SPEC, metric="macro_f1", patience=2), PLAN),
    "sgd without momentum or validation": (replace(SGD, momentum=0.0, validation_samples=0), PLAN),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", VARIANTS)
def test_training_interrupted_after_any_step_ends_with_the_same_weights(job: Job, name: str) -> None:
    """Stopped after each of its steps in turn, a deterministic training ends with the undisturbed one's weights."""
    spec, plan = VARIANTS[name]
    job = replace(job, spec=spec, plan=plan)
    undisturbed = job.undisturbed()
    assert undisturbed.steps == (spec.max_steps or (STEPS if spec.validation_samples else 15))
    for steps in range(1, undisturbed.steps + 1):
        again = job.elsewhere(f"after {steps}")
        again.interrupted(1, steps)
        assert again.found()[0].position == steps
        resumed = again.run(2)
        assert_same(resumed, undisturbed)
        assert resumed.steps == undisturbed.steps - steps


@pytest.mark.slow
def test_resumed_resnet18_ends_with_the_same_weights(job: Job) -> None:
    """Stopped after its first step and at its last: weights of every shape get their state back."""
    job = replace(job, spec=replace(SPEC, model="resnet18", epochs=1), plan=replace(FLOAT32, micro_batch=16))
    undisturbed = job.undisturbed()
    job.interrupted(1, 1)
    job.interrupted(2, 3)
    resumed = job.run(3)
    assert_same(resumed, undisturbed)
    assert (undisturbed.steps, resumed.steps) == (4, 0)


def test_a_training_that_is_ended_within_an_epoch_validates_it(job: Job) -> None:
    """Its last epoch is shorter, and no checkpoint counts steps beyond it."""
    job = replace(job, spec=replace(SPEC, max_steps=10))
    done = job.run()
    assert done.steps == 10
    assert [epoch.epoch for epoch in done.epochs] == [1, 2, 3]
    assert all(epoch.val_acc is not None for epoch in done.epochs)
    last = done.records.of("progress")[-1]
    assert (last["epoch"], last["epochs"], last["step"], last["steps"]) == (3, 3, 2, 2)
    assert (last["train_steps"], last["eta_s"]) == (10, 0)
    assert job.found()[0].position == 10
    resumed = job.run(2)
    assert_same(resumed, done)
    assert resumed.steps == 0


def test_a_training_that_is_ended_after_whole_epochs_is_one_of_fewer_epochs(job: Job) -> None:
    """To the bit: its learning rates are those of the shorter training, too."""
    ended = replace(job, spec=replace(SPEC, max_steps=8)).elsewhere("ended")
    shorter = replace(job, spec=replace(SPEC, epochs=2)).elsewhere("shorter")
    assert_same(ended.run(), shorter.run())


def test_training_without_a_checkpoint_starts_over(job: Job) -> None:
    """Killed before its first checkpoint, a training starts over and ends the same."""
    undisturbed = job.undisturbed()
    with pytest.raises(KeyboardInterrupt):
        job.run(1, fatal=lambda kind, payload: kind == "progress")  # noqa: ARG005
    assert job.found() == []
    assert_same(job.run(2), undisturbed)


@pytest.mark.usefixtures("immediate_writes")
@pytest.mark.parametrize("epoch", [1, 3])
def test_training_killed_after_an_epoch_ends_with_the_same_weights(job: Job, epoch: int) -> None:
    """The checkpoint at the end of an epoch holds its validation: no step and no validation of it is run again."""
    undisturbed = job.undisturbed()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("training.checkpoints.schedule.COST", 1e9)
        job.run(1, fatal=lambda kind, payload: kind == "checkpoint" and payload["epoch"] == epoch)
    assert (job.found()[0].epoch, job.found()[0].step) == (epoch, 0)
    resumed = job.run(2)
    assert_same(resumed, undisturbed)
    assert resumed.steps == STEPS - 4 * epoch
    assert [payload["epoch"] for payload in resumed.records.of("epoch")] == list(range(epoch + 1, 4))


def test_best_weights_are_restored(job: Job) -> None:
    """Weights of an epoch before the interruption are kept where no later one validates better, and end training."""
    labels = job.store.train_labels.clone()
    labels[-HELD_OUT:] = (labels[-HELD_OUT:] + 1) % 10  # so that the more it learns, the worse it validates
    spec = replace(SPEC, epochs=30, patience=3, schedule="constant", learning_rate=0.002)
    job = replace(job, store=replace(job.store, train_labels=labels), spec=spec)
    undisturbed = job.undisturbed()
    best = max(undisturbed.epochs, key=lambda epoch: epoch.rank("accuracy")).epoch
    assert len(undisturbed.epochs) == best + 3 < 30
    job.interrupted(1, 4 * best + 5)
    resumed = job.run(2)
    assert_same(resumed, undisturbed)
    assert resumed.steps == 7


DROPOUT = """
from torch import nn

def dropping(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))
"""


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_state_is_restored(job: Job, install_package: Callable[..., None], workers: int) -> None:
    """A network with dropout ends the same, with a loader process too, which does not meddle with torch's numbers."""
    install_package("preflight.models", {"dropping": "dropping:dropping"}, "dropping", DROPOUT)
    plan = replace(PLAN, loader_workers=workers)
    job = replace(job, spec=replace(SPEC, model="dropping", augmentation=EVERYTHING), plan=plan)
    undisturbed = job.undisturbed()
    assert_same(replace(job.elsewhere("without a loader"), plan=PLAN).run(), undisturbed)
    job.interrupted(1, 6)
    resumed = job.run(2)
    assert_same(resumed, undisturbed)
    assert resumed.steps == 6


@pytest.mark.parametrize("workers", [0, 1])
def test_finished_steps_are_not_gathered_again(store: PreparedDataset, workers: int) -> None:
    """From any step on, an epoch's batches are the last ones of the whole epoch, and only these are asked for."""
    spec = replace(SPEC, augmentation=EVERYTHING)
    batches = Batches(store, spec, replace(PLAN, loader_workers=workers))
    whole = list(batches.of(1))
    for first in range(len(whole) + 1):
        rest = list(batches.of(1, first))
        assert len(rest) == len(whole) - first
        for (images, labels), (same_images, same_labels) in zip(rest, whole[first:], strict=True):
            assert torch.equal(images, same_images)
            assert torch.equal(labels, same_labels)
    order = EpochOrder(SPEC.seed, 32, split(SPEC, store.info))
    order.first = 3
    assert (len(order), len(list(order))) == (1, 1)


def test_progress_continues_at_the_resumed_step(job: Job) -> None:
    """Records of the resumed attempt count on: what it took up, epoch 2 from its third step on, and all the rest."""
    job.interrupted(1, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.loop.window.WINDOW_SECONDS", 0.0)
        patch.setattr("training.loop.window.RARER_AFTER", math.inf)
        records = job.run(2).records
    taken_up = {"epoch": 1, "step": 2, "checkpoint": str(job.directory / "1" / file_name(6, "json"))}
    assert records.written[0] == ("resumed", taken_up)
    progress = [(payload["epoch"], payload["step"]) for payload in records.of("progress")]
    assert progress == [(2, 3), (2, 4), (3, 1), (3, 2), (3, 3), (3, 4)]
    assert [payload["epoch"] for payload in records.of("epoch")] == [2, 3]


def file_name(position: int, suffix: str) -> str:
    return f"checkpoint-{position:012d}.{suffix}"


def test_checkpoints_are_due_by_time_within_an_epoch(job: Job) -> None:
    """Where the interval is over after each step, there are some amid an epoch, and two are left, whole."""
    records = replace(job, seconds=1e-9, spec=replace(SPEC, epochs=10)).run().records
    made = records.of("checkpoint")
    assert any(payload["step"] not in (0, 4) for payload in made)
    assert (made[-1]["epoch"], made[-1]["step"]) in ((10, 0), (9, 4))
    positions = [4 * number(payload["epoch"]) + number(payload["step"]) for payload in made]
    assert positions == sorted(set(positions))
    for payload in made:
        assert list(payload) == ["epoch", "step", "seconds", "write_seconds", "bytes"]
        assert number(payload["seconds"]) > 0
        assert number(payload["write_seconds"]) > 0
    left = sorted(path.name for path in (job.directory / "1").iterdir())
    assert left == sorted(file_name(int(at), suffix) for at in positions[-2:] for suffix in ("json", "safetensors"))


@pytest.mark.usefixtures("immediate_writes")
@pytest.mark.parametrize(("cost", "epochs"), [(1e9, [1, 2, 3]), (0.0, [1, 3])])
def test_epochs_end_with_a_checkpoint_if_it_is_affordable(
    job: Job, monkeypatch: pytest.MonkeyPatch, cost: float, epochs: list[int]
) -> None:
    """Without a share to spend, only the first, whose cost nobody knows, and that of the end, which is always made."""
    monkeypatch.setattr("training.checkpoints.schedule.COST", cost)
    made = job.run().records.of("checkpoint")
    assert [(payload["epoch"], payload["step"]) for payload in made] == [(epoch, 0) for epoch in epochs]


@pytest.mark.parametrize(("asked", "due"), [(None, SECONDS), (10.0, (10.0, 10.0))])
def test_expensive_checkpoints_are_made_less_often(
    job: Job, monkeypatch: pytest.MonkeyPatch, asked: float | None, due: tuple[float, float]
) -> None:
    """With no share to spend, as seldom as may be; not where somebody said how much training a kill may cost."""
    monkeypatch.setattr("training.checkpoints.schedule.COST", 0.0)
    place, moment = job.directory / "1", 0.0
    monkeypatch.setattr("time.perf_counter", lambda: moment)
    place.mkdir(parents=True)
    with Checkpointer(job.step(), job.store.info, Records(), directory=place, seconds=asked) as checkpointer:
        moment = began = due[0] + 0.5
        assert checkpointer.due(), "what it costs is not known before the first one"
        checkpointer.save_sync(replace(checkpointer.resume(()), step=1))
        moment = began + due[0] - 0.5
        assert not checkpointer.due()
        moment = began + due[0] + 0.5
        assert checkpointer.due() == (asked is not None)
        moment = began + due[1] + 0.5
        assert checkpointer.due()


def test_a_checkpoint_describes_its_training(job: Job) -> None:
    """What is found has plan and facts of the training that made it, and its files are plain safetensors and JSON."""
    job.interrupted(1, 5)
    found = job.found()[0]
    path = job.directory / "1" / file_name(5, "json")
    assert found == ResumePoint(path, 1, 1, 5, PLAN, FACTS)
    tensors = load_file(path.with_suffix(".safetensors"))
    (description,) = [value for key, value in json.loads(path.read_text()).items() if key == "checkpoint"]
    assert set(description["tensors"]) == tensors.keys()
    assert {name.partition("/")[0] for name in tensors} == {"model", "best", "optimizer", "random"}
    assert description["spec"] == dataclasses.asdict(SPEC)
    assert path.stat().st_mode & 0o777 == 0o644


def test_checkpoint_size_is_predicted(job: Job) -> None:
    """What is asked for before the first step is within 1 MiB of what is then written, for either optimizer."""
    for spec in (SPEC, SGD, replace(SGD, momentum=0.0)):
        trained = replace(job, spec=spec).elsewhere(f"{spec.optimizer} {spec.momentum}")
        for payload in trained.run().records.of("checkpoint"):
            assert 0 <= number(payload["bytes"]) - trained.step().checkpoint_bytes() < 1 << 20


def test_training_resumes_under_another_plan(job: Job) -> None:
    """A checkpoint made in channels_last is gone on from in contiguous memory, and the other way round."""
    for attempt, plan in enumerate((LAST, PLAN, replace(LAST, micro_batch=16)), 1):
        replace(job, plan=plan).interrupted(attempt, 3)
    resumed = replace(job, plan=PLAN).run(4)
    assert (resumed.steps, len(resumed.epochs)) == (3, 3)


@pytest.mark.parametrize(("processes", "expected"), [
    (None, PLAN), (1, PLAN), (2, replace(PLAN, threads=2, micro_batch=16)),
])  # fmt: skip
def test_a_checkpoint_of_an_earlier_version_is_resumed(job: Job, processes: int | None, expected: Plan) -> None:
    """Of one process, or of several: one has their threads, and micro-batches of the share that each had."""
    job.interrupted(1, 5)
    path = job.found()[0].path
    body = json.loads(path.read_bytes())["checkpoint"]
    if processes is not None:
        body["plan"]["processes"] = processes
    body["spec"]["average_every"] = 1
    del body["spec"]["class_weights"], body["spec"]["sampler"]
    del body["spec"]["metric"], body["course"]["metric"], body["course"]["history"][0]["val_macro_f1"]
    path.write_bytes(sealed(json.dumps(body).encode()))
    assert job.found()[0].plan == expected
    assert replace(job, plan=expected).run(2).steps == STEPS - 5


# What is on disk: damaged, hostile, of another job, or too much.


@pytest.fixture
def two(job: Job) -> Job:
    """Return a job with two checkpoints, at steps 5 and 7."""
    job.interrupted(1, 5)
    job.interrupted(2, 2)
    assert [found.position for found in job.found()] == [7, 5]
    return job


def sealed(body: bytes) -> bytes:
    return b'{"sha256":"%b","checkpoint":%b}\n' % (hashlib.sha256(body).hexdigest().encode(), body)


def described(path: Path) -> Checkpoint:
    return CHECKPOINT.validate_json(path.read_bytes().partition(b'"checkpoint":')[2][:-2])


def reseal(path: Path, checkpoint: Checkpoint) -> None:
    path.write_bytes(sealed(CHECKPOINT.dump_json(checkpoint)))


def with_tensors(path: Path, write_tensors: Callable[[Path], None]) -> None:
    tensors = path.with_suffix(".safetensors")
    write_tensors(tensors)
    reseal(path, replace(
        described(path),
        tensors_bytes=tensors.stat().st_size, tensors_sha256=hashlib.sha256(tensors.read_bytes()).hexdigest(),
    ))  # fmt: skip


def drop_one(tensors: Path) -> None:
    save_file({name: value for name, value in load_file(tensors).items() if name != "random"}, tensors)


def a_pickle(tensors: Path) -> None:
    """Write what would create a file if it were unpickled."""
    tensors.write_bytes(pickle.dumps(Trap(str(tensors.parent / "executed"))))


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path(self._path),)


def of_its_tensors(harm: Harm) -> Harm:
    return lambda path: harm(path.with_suffix(".safetensors"))


DAMAGE: dict[str, tuple[Harm, str]] = {
    "half the description": (truncated, "it is damaged: its checksum does not match"),
    "a flipped bit in the description": (flipped, "it is damaged: its checksum does not match"),
    "an empty description": (lambda path: os.truncate(path, 0), "it is damaged: its checksum does not match"),
    "half the tensors": (of_its_tensors(truncated), r"has [\d,]+ bytes instead of [\d,]+"),
    "a flipped bit in the tensors": (of_its_tensors(flipped), "is damaged: its sha256 is not the recorded one"),
    "no tensors": (of_its_tensors(Path.unlink), r"cannot be read \(No such file or directory\)"),
    "a tensor less": (lambda path: with_tensors(path, drop_one), "does not hold the tensors that it should"),
    "a pickle": (lambda path: with_tensors(path, a_pickle), "is not in the form of safetensors"),
    "a linked description": (linked, r"it cannot be read \(Too many levels of symbolic links\)"),
    "linked tensors": (of_its_tensors(linked), r"cannot be read \(Too many levels of symbolic links\)"),
    "a pipe": (a_pipe, "is not a regular file"),
    "a directory": (a_directory, "is not a regular file"),
    "a huge description": (huge, "is larger than 16 MiB"),
    "another version": (lambda path: path.write_bytes(sealed(b'{"format":2}')), "it is not of this version"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_checkpoints_are_skipped(two: Job, name: str) -> None:
    """The damaged one is named in a sentence that says what is wrong, nothing in it is run; the older one serves."""
    harm, says = DAMAGE[name]
    path = two.directory / "2" / file_name(7, "json")
    harm(path)
    found, (warning,) = find_resume_points(two.directory, two.spec, two.store.info, Digests())
    assert [each.position for each in found] == [5]
    assert warning.startswith(f"checkpoint {path} is passed over because ")
    assert re.search(says, warning)
    assert not (two.directory / "2" / "executed").exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_every_flipped_bit_is_detected(tmp_path: Path, digits_store: DatasetInfo, data: st.DataObject) -> None:
    """Wherever in either file one bit is another, the checkpoint is passed over."""
    job_dir = tmp_path / "flipped"
    shutil.rmtree(job_dir, ignore_errors=True)
    path = a_small_one(job_dir / "1", digits_store)
    assert len(find_resume_points(job_dir, SPEC, digits_store, Digests())[0]) == 1
    harmed = data.draw(st.sampled_from([path, path.with_suffix(".safetensors")]))
    content = bytearray(harmed.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    harmed.write_bytes(content)
    found, warnings = find_resume_points(job_dir, SPEC, digits_store, Digests())
    assert (found, len(warnings)) == ([], 1)


def a_small_one(directory: Path, info: DatasetInfo, step: int = 3) -> Path:
    """Write a checkpoint of a training that has one tensor, and return the path of its description."""
    directory.mkdir(parents=True, exist_ok=True)
    return write(directory, origin(info), TrainState(steps=21, step=step), {"model/x": a_blob(64)})[0]


def origin(info: DatasetInfo) -> Origin:
    """Return what the default training is made from."""
    return Origin(spec=SPEC, plan=PLAN, dataset="digits", data_sha256=checksum(info, Digests()), facts=FACTS)


def a_blob(size: int) -> TensorView:
    return TensorView("U8", (size,), memoryview(bytes(size)), 1)


DEEP = b"[" * 200_000
HOSTILE = [
    b"", b"{}", b"[]", b"null", b"\xff\xfe", DEEP, b'{"facts":' + DEEP, b'{"format":' + b"9" * 100_000 + b"}",
    b'{"course":NaN}',
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(body=st.sampled_from(HOSTILE) | st.binary(max_size=200), seal=st.booleans())
def test_no_checkpoint_content_raises(tmp_path: Path, digits_store: DatasetInfo, body: bytes, seal: bool) -> None:
    """Whatever is in a description, with a right checksum or without: it is passed over, and that is all."""
    place = tmp_path / "hostile" / "1"
    place.mkdir(parents=True, exist_ok=True)
    (place / file_name(1, "json")).write_bytes(sealed(body) if seal else body)
    found, warnings = find_resume_points(tmp_path / "hostile", SPEC, digits_store, Digests())
    assert (found, len(warnings)) == ([], 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_no_checkpoint_value_raises(tmp_path: Path, digits_store: DatasetInfo, data: st.DataObject) -> None:
    """A description in which any one value is replaced by any other, and sealed anew, does not raise."""
    path = a_small_one(tmp_path / "odd" / "1", digits_store)
    body = json.loads(path.read_bytes())["checkpoint"]
    holder = data.draw(st.sampled_from([body, body["spec"], body["plan"], body["course"]]))
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    )
    holder[data.draw(st.sampled_from(sorted(holder)))] = data.draw(anything)
    path.write_bytes(sealed(json.dumps(body).encode()))
    found, warnings = find_resume_points(tmp_path / "odd", SPEC, digits_store, Digests())
    assert len(found) + len(warnings) == 1


def test_checkpoints_of_another_spec_or_other_data_are_skipped(two: Job, tmp_path: Path) -> None:
    """The sentence names what differs; the same data prepared again, elsewhere and later, are the same."""
    _, warnings = find_resume_points(two.directory, replace(SPEC, seed=1, epochs=4), two.store.info, Digests())
    assert [warning.partition(" because ")[2] for warning in warnings] == [
        "it is of another job, whose spec differs in epochs, seed"
    ] * 2
    again = prepare("digits", tmp_path, tmp_path, download=False)
    assert len(find_resume_points(two.directory, SPEC, again, Digests())[0]) == 2
    content = bytearray(again.path.read_bytes())
    content[-1] ^= 1
    again.path.write_bytes(content)
    _, warnings = find_resume_points(two.directory, SPEC, again, Digests())
    assert [warning.partition(" because ")[2] for warning in warnings] == [
        "data set 'digits' held other data when it was made"
    ] * 2


def test_checkpointer_skips_damaged_checkpoints(two: Job) -> None:
    """The first of the given checkpoints that can be taken up is; each before it is a warning, and harms nothing."""
    undisturbed = two.undisturbed()
    newest, older = (found.path for found in two.found())
    with_tensors(newest, lambda tensors: save_file({**load_file(tensors), "model/9.0": torch.zeros(2)}, tensors))
    reseal(newest, replace(described(newest), tensors=(*described(newest).tensors, "model/9.0")))
    missing = two.directory / "1" / file_name(9, "json")
    records, step = Records(), two.step()
    with Checkpointer(step, two.store.info, records) as checkpointer:
        state = checkpointer.resume([missing, newest, older])
        done = fit(step, two.store, ProgressObserver(step, state, records), lambda: False, checkpointer)
    assert records.kinds[:3] == ["warning", "warning", "resumed"]
    unreadable, unsuitable = records.of("warning")
    assert "cannot be read" in str(unreadable)
    assert "its weights are not those of model 'cnn-small-valid'" in str(unsuitable)
    assert_same(Outcome(step.model.state_dict(), list(done.epochs), records, 0), undisturbed)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("model/0.0.weight", None, "its weights are not those of model 'cnn-small-valid'"),
        ("best/0.0.weight", None, "its weights are not those of model 'cnn-small-valid'"),
        ("optimizer/99/exp_avg", torch.zeros(3), "the optimizer has no parameter 99"),
        ("optimizer/x/exp_avg", torch.zeros(3), "the optimizer has no parameter x"),
        ("optimizer/0/exp_avg", torch.zeros(3), "exp_avg of parameter 0 has another shape"),
        ("random", None, "its random state is none"),
    ],
)
def test_unsuitable_tensors_leave_the_model_unchanged(two: Job, name: str, value: Tensor | None, says: str) -> None:
    """A tensor missing, too many or of another shape is refused by name before any weight is changed."""
    tensors = load_file(two.found()[0].path.with_suffix(".safetensors"))
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    step = two.step()
    before = {key: weight.clone() for key, weight in step.model.state_dict().items()}
    with pytest.raises(InvalidCheckpoint, match=says):
        restore(step, tensors, best=True)
    assert all(torch.equal(before[key], weight) for key, weight in step.model.state_dict().items())


def test_only_checkpoints_of_attempts_count(two: Job, tmp_path: Path) -> None:
    """Linked attempts, other names, temporary files and what has no description are silently no checkpoints."""
    before = two.found()
    newest = before[0].path
    (two.directory / "3").symlink_to(newest.parent)
    (two.directory / "latest").mkdir()
    shutil.copy(newest, two.directory / "latest" / newest.name)
    shutil.copy(newest, newest.with_name(f".{newest.name}.tmp"))
    shutil.copy(newest, newest.with_name("checkpoint-7.json"))
    shutil.copy(newest.with_suffix(".safetensors"), newest.with_name(file_name(9, "safetensors")))
    assert two.found() == before
    assert find_resume_points(tmp_path / "nothing here", SPEC, two.store.info, Digests()) == ([], [])


def test_prune_leaves_checkpoints_of_later_attempts(tmp_path: Path, digits_store: DatasetInfo) -> None:
    """Pruned is what this attempt and those before it left, torn files too; a later attempt's stay."""
    first, second, third = (a_small_one(tmp_path / str(number), digits_store, step=number) for number in (9, 10, 11))
    torn = first.with_name(f".{file_name(4, 'safetensors')}.abc")
    torn.write_bytes(b"torn")
    stranger = first.with_name("training-child.jsonl")
    stranger.write_bytes(b"kept")
    newest = a_small_one(tmp_path / "10", digits_store, step=12)
    assert stored_bytes(second.parent) > stored_bytes(first.parent) > 4
    prune(second.parent, [newest])
    assert sorted(tmp_path.rglob("*.*")) == sorted(
        [stranger, newest, newest.with_suffix(".safetensors"), third, third.with_suffix(".safetensors")]
    )


def test_no_checkpoint_holds_non_finite_values(tmp_path: Path, store: PreparedDataset) -> None:
    """At this rate variances of batch norm are mostly infinite before the loss is: no good checkpoint would be left."""
    absurd = replace(SPEC, epochs=20, optimizer="sgd", learning_rate=100.0)
    with pytest.raises(Diverged, match=r"after step \d+; lower learning_rate \(now 100\.0\) or set gradient_clip"):
        Job(tmp_path, store, absurd, seconds=1e-9).run()
    kept = [load_file(tensors_of(path)) for path in tmp_path.rglob("*.json")]
    assert kept  # one or two: they are written beside the training, as fast as the disk is
    assert all(bool(tensor.isfinite().all()) for tensors in kept for tensor in tensors.values())


@pytest.mark.parametrize(
    ("broken", "value"),
    [("model/0.0.weight", math.nan), ("model/0.1.running_var", math.inf), ("optimizer/0/exp_avg", -math.inf)],
)
def test_non_finite_tensor_is_named_and_the_last_checkpoint_stays(job: Job, broken: str, value: float) -> None:
    """One element of one tensor is enough."""
    place, step = job.directory / "1", job.step()
    place.mkdir(parents=True)
    with Checkpointer(step, job.store.info, Records(), directory=place) as checkpointer:
        step.run(torch.rand(32, 1, 28, 28), torch.arange(32) % 10, 1e-3)
        checkpointer.save_sync(TrainState(steps=21, step=1))
        tensors = {**step.model.state_dict(prefix="model/")}
        tensors["optimizer/0/exp_avg"] = step.optimizer.state[step.parameters[0]]["exp_avg"]
        tensors[broken].view(-1)[-1] = value
        with pytest.raises(Diverged, match=f"^{re.escape(broken)} holds NaN or an infinity after step 2; lower"):
            checkpointer.save_sync(TrainState(steps=21, step=2))
    assert [found.position for found in job.found()] == [1]


@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_without_room_for_copies_training_waits_for_the_same_checkpoint(
    job: Job, tmp_path: Path, memory_format: MemoryFormat
) -> None:
    """Copies of a network that fills half of a small container would have it killed at its first checkpoint."""
    saved: list[tuple[bytes, list[str]]] = []
    step = replace(job, plan=replace(PLAN, memory_format=memory_format)).step()
    step.run(torch.rand(32, 1, 28, 28), torch.arange(32) % 10, 1e-3)
    for name, memory in (("copied", None), ("live", container_memory(tmp_path / "container", 900))):
        place, records = tmp_path / name, Records()
        place.mkdir()
        with Checkpointer(step, job.store.info, records, directory=place, memory=memory) as checkpointer:
            checkpointer.save(TrainState(steps=21, step=1))
            told = [*records.kinds]
            checkpointer.save_sync(TrainState(steps=21, step=1))
        (path,) = place.glob("*.json")
        saved.append((tensors_of(path).read_bytes(), told))
    (copied, _), (live, at_once) = saved
    assert copied == live
    assert at_once == ["checkpoint"]


def test_an_initial_mask_of_infinities_is_saved(tmp_path: Path, store: PreparedDataset) -> None:
    """What a model holds from its beginning on is no sign of a training that breaks down."""

    def masked(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
        model = build(name, shape, classes)
        model.register_buffer("mask", torch.full((3,), -math.inf))
        return model

    records = Records()
    step = TrainStep(SPEC, PLAN, store.info.shape, store.info.classes, masked)
    with Checkpointer(step, store.info, records, directory=tmp_path) as checkpointer:
        checkpointer.save_sync(TrainState(steps=21, step=1))
    assert records.kinds == ["checkpoint"]


def test_a_full_disk_does_not_stop_training(
    small_disk: tuple[Path, Callable[[], None]], tmp_path: Path, store: PreparedDataset
) -> None:
    """Nothing fits: that is said once, training ends as ever, and nothing is left of the attempts to write."""
    disk, _ = small_disk
    undisturbed = Job(tmp_path.parent / f"{tmp_path.name} undisturbed", store).run()
    outcome = Job(disk / "job", store, seconds=1e-9).run()
    assert_same(outcome, undisturbed)
    (warning,) = outcome.records.of("warning")
    message = str(warning["message"])
    assert message.startswith(f"no checkpoint can be written to {disk / 'job' / '1'} (")
    assert re.search(r"\((No space left on device|File too large)\); training continues", message)
    assert outcome.records.of("checkpoint") == []
    assert list((disk / "job" / "1").iterdir()) == []


def test_a_full_disk_does_not_prevent_a_stop(job: Job, small_disk: tuple[Path, Callable[[], None]]) -> None:
    """Asked to stop where nothing can be written, it says so and stops."""
    records, step = Records(), job.step()
    with (
        Checkpointer(step, job.store.info, records, directory=small_disk[0]) as checkpointer,
        pytest.raises(ChildStopped),
    ):
        observer = ProgressObserver(step, checkpointer.resume(()), records)
        fit(step, job.store, observer, lambda: True, checkpointer)
    assert records.kinds == ["warning"]


def test_a_failed_write_leaves_the_last_checkpoint(
    small_disk: tuple[Path, Callable[[], None]], digits_store: DatasetInfo
) -> None:
    """What does not fit is not there, not even in part, and the one before it is still good."""
    disk, make_room = small_disk
    path = a_small_one(disk / "1", digits_store)
    before = sorted(path.parent.iterdir())
    large = {"model/x": a_blob(12_000)}
    for step in (4, 3):
        with pytest.raises(OSError, match=r"No space left|File too large"):
            write(path.parent, origin(digits_store), TrainState(steps=21, step=step), large)
    assert sorted(path.parent.iterdir()) == before
    assert [found.path for found in find_resume_points(disk, SPEC, digits_store, Digests())[0]] == [path]
    make_room()
    write(path.parent, origin(digits_store), TrainState(steps=21, step=4), large)
    assert [found.position for found in find_resume_points(disk, SPEC, digits_store, Digests())[0]] == [4, 3]


def test_checkpoints_survive_deleted_prepared_data(job: Job, tmp_path: Path) -> None:
    """The cache can be deleted at any time: what is open stays open, and checkpoints are made all the same."""
    copied = prepare("digits", tmp_path, tmp_path, download=False)
    job = replace(job, store=replace(job.store, info=replace(job.store.info, path=copied.path)))

    def delete(kind: str, payload: dict[str, JsonValue]) -> bool:  # noqa: ARG001
        copied.path.unlink(missing_ok=True)
        return False

    records = job.run(fatal=delete).records
    assert not copied.path.exists()
    assert (records.of("warning"), records.of("checkpoint")[-1]["epoch"]) == ([], 3)


def test_a_removed_directory_does_not_stop_training(job: Job) -> None:
    """Checkpoints cease with one warning; the training ends as ever."""
    undisturbed = job.undisturbed()

    def remove(kind: str, payload: dict[str, JsonValue]) -> bool:  # noqa: ARG001
        if kind == "epoch":
            shutil.rmtree(job.directory, ignore_errors=True)
        return False

    outcome = job.run(fatal=remove)
    assert_same(outcome, undisturbed)
    (warning,) = outcome.records.of("warning")
    assert "(No such file or directory); training continues" in str(warning["message"])


@pytest.mark.parametrize("changed", [False, True])
def test_files_verified_by_the_parent_are_not_hashed_again(
    two: Job, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """Its child takes the verdicts on data and tensors, and hashes only the file that looks different meanwhile."""
    monkeypatch.setattr(digests_module, "SETTLED_NS", 0)
    verdicts = Digests()
    found, _ = find_resume_points(two.directory, two.spec, two.store.info, verdicts)
    assert find_resume_points(two.directory, two.spec, two.store.info, verdicts) == (found, [])
    assert len(verdicts.known()) == 3
    if changed:
        os.utime(found[0].path.with_suffix(".safetensors"))
    hashed: list[str] = []

    def hash_rest(file: BinaryIO, alive: Callable[[], None]) -> str:
        hashed.append(Path(f"/proc/self/fd/{file.fileno()}").readlink().name)
        return real(file, alive)

    real = atomic_files.hash_rest
    monkeypatch.setattr(digests_module, "hash_rest", hash_rest)
    with Checkpointer(two.step(), two.store.info, Records(), verified=verdicts.known()) as checkpointer:
        assert checkpointer.resume([each.path for each in found]).position == 7
    assert hashed == ([file_name(7, "safetensors")] if changed else [])
