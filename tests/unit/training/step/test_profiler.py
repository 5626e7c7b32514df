"""Where the time of a training goes: all of it to some phase, and what a phase does to that phase."""

import gzip
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.files.journal import JournalWriter
from training.checkpoints.checkpointer import Checkpointer
from training.data.dataset_info import DatasetInfo
from training.data.dataset_store import open_dataset
from training.loop.progress import ProgressObserver
from training.loop.trainer import fit
from training.optim.untraced import PlainAdamW
from training.step.profiler import PHASES, TRACED, UNTRACED, Phase, PhaseTimer, no_timer, tracing
from training.step.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("torch_as_it_was")

SPEC = TrainSpec(dataset="digits", model="cnn", epochs=2, batch_size=64, patience=None)
PLAN = Plan(threads=1, micro_batch=32)


def test_every_moment_belongs_to_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies between two calls is the later one's; nothing is lost between them."""
    clock = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)) ** 2)
    laps = PhaseTimer()  # at 0, then at 1, 4, 9, 16
    for phase in ("data", "forward", "data", "other"):
        laps(phase)
    expected = {"data_s": 1.0 + 5.0, "forward_s": 3.0, "other_s": 7.0}
    rest = {f"{phase}_s": 0.0 for phase in PHASES if f"{phase}_s" not in expected}
    assert laps.profile(4) == {"steps": 4, "average_batch_s": 4.0, "total_s": 16.0, **expected, **rest}
    assert PhaseTimer().profile(0)["steps"] == 0


def train(store: DatasetInfo, directory: Path, laps: PhaseTimer, spec: TrainSpec = SPEC) -> list[Phase]:
    """Train, and return the phases in the order in which they ended."""
    opened, ended = open_dataset(store.path), list[Phase]()
    step = TrainStep(spec, PLAN, store.shape, store.classes)

    def lap(phase: Phase) -> None:
        ended.append(phase)
        laps(phase)

    step.end_phase = lap
    with JournalWriter(directory / "journal", "laps") as journal, Checkpointer(step, store, journal) as checkpointer:
        fit(step, opened, ProgressObserver(step, checkpointer.resume(()), journal), lambda: False, checkpointer)
    return ended


def test_a_training_passes_through_its_phases(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """Forward, loss and backward once for each micro-batch; fetching and stepping once; a validation at each end."""
    ended = train(digits_store, tmp_path, PhaseTimer())
    validations = [place for place, phase in enumerate(ended) if phase == "validation"]
    assert len(validations) == SPEC.epochs
    step = ["data", *2 * ["forward", "loss", "backward"], "optimizer", "other", "checkpoint"]
    steps, left = divmod(validations[0] - 1, len(step))  # an `other` before each validation
    assert left == 0
    assert ended == SPEC.epochs * [*steps * step, "other", "validation", "other", "checkpoint"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("slow", ["forward", "backward", "optimizer"])
def test_what_is_slow_shows_where_it_is(
    digits_store: DatasetInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: Phase
) -> None:
    """A phase in which time is wasted has that time, and no other has it."""
    place = {
        "forward": (TrainStep, "logits"), "backward": (torch.autograd, "backward"),
        "optimizer": (PlainAdamW, "step"),
    }[slow]  # fmt: skip
    real = getattr(*place)

    def wasteful(*args: object, **options: object) -> object:
        time.sleep(0.005)
        return real(*args, **options)

    plain, wasted = PhaseTimer(), PhaseTimer()
    train(digits_store, tmp_path, plain, replace(SPEC, epochs=1, validation_samples=0))
    monkeypatch.setattr(*place, wasteful)
    ended = train(digits_store, tmp_path, wasted, replace(SPEC, epochs=1, validation_samples=0))
    assert wasted.seconds[slow] >= 0.005 * ended.count(slow) > 0.1


def test_a_few_warm_steps_are_traced(tmp_path: Path) -> None:
    """In the format that Chrome and Perfetto read; the laps go on to whoever counts them."""
    heard: list[Phase] = []
    path = tmp_path / "model" / "trace.json.gz"
    with tracing(path, heard.append) as lap:
        for _ in range(UNTRACED + TRACED + 3):
            torch.ones(3).relu()
            lap("forward")
            lap("optimizer")
    assert len(heard) == 2 * (UNTRACED + TRACED + 3)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::relu" for event in events) == TRACED


@pytest.mark.slow
def test_nothing_is_traced_where_nobody_asked(tmp_path: Path) -> None:
    """Nor in a training that ends before it is warm."""
    with tracing(None, no_timer) as lap:
        assert lap is no_timer
    with tracing(tmp_path / "trace.json", no_timer) as lap:
        lap("optimizer")
    assert list(tmp_path.iterdir()) == []
