"""A real training child under a prediction that nothing can meet: it adapts; a deterministic one never does."""

import dataclasses
import os
import re
from pathlib import Path

import pytest
from support.worker.records import number

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.errors import ChildStopped
from preflight.files.journal import Record
from training.data.dataset_info import DatasetInfo
from training.loop import child as training_child
from training.loop.child import TrainingRequest
from training.loop.tuning.plan_tuner import LEAST_SECONDS
from training.loop.tuning.threads import SETTLE, TRIAL, WINDOWS
from training.prediction import Prediction
from training.process.child import Child
from training.process.runner import iter_records

SPEC = TrainSpec(dataset="digits", model="cnn", epochs=10_000, batch_size=64)
PLAN = Plan(threads=2, micro_batch=64)
ABSURD = Prediction(epoch_s=21e-6, low_s=21e-6, high_s=21e-6, step_s=1e-6)
"""A microsecond a step."""


def training(store: DatasetInfo, directory: Path, spec: TrainSpec, prediction: Prediction | None) -> Child:
    """Start the real training child; its files go to the new `directory`."""
    directory.mkdir()
    request = TrainingRequest(
        spec=spec, plan=PLAN, store=store.path, artifact=directory / "model", facts={}, prediction=prediction
    )
    return Child(training_child.MODULE, training_child.REQUEST.dump_json(request), directory, dict(os.environ))


def seconds(record: Record) -> float:
    """Return what an epoch spent in its steps."""
    return number(record.payload["train_seconds"]) if record.kind == "epoch" else 0.0


@pytest.mark.slow
def test_a_training_that_is_far_too_slow_tries_one_thread(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """Warned once a cause, and each change is recorded with its reason: the trial, and what came of it."""
    heard: list[Record] = []
    with training(digits_store, tmp_path / "job", SPEC, ABSURD) as child, pytest.raises(ChildStopped):
        for record in iter_records(child, lambda: None):
            heard.append(record)
            early = any(record.kind == "prediction" and not record.payload["whole"] for record in heard)
            if early and sum(record.kind == "adapted" for record in heard) >= 2:
                child.ask_to_stop()
    tried, decided = [record.payload for record in heard if record.kind == "adapted"][:2]
    assert (tried["field"], tried["before"], tried["after"]) == ("threads", 2, 1)
    slow, crowded = "3 windows at 0% of the 64,000,000 samples/s measured before: ", r"others leave [01] free processor"
    assert re.match(f"{slow}|{crowded}", str(tried["reason"]))
    assert decided["after"] in (1, 2)
    assert str(decided["reason"]).endswith("; staying" if decided["after"] == 1 else "; going back")
    compared = [record.payload for record in heard if record.kind == "prediction"]
    assert sum(not payload["whole"] for payload in compared) == 1
    causes = {payload["cause"] for payload in compared}
    assert {"adapted"} <= causes <= {"noisy", "calibration", "adapted"}
    warnings = [str(record.payload["message"]) for record in heard if record.kind == "warning"]
    assert len(warnings) == len(causes - {"adapted"})  # a busy machine may be slow only after the first change


def test_a_deterministic_training_is_only_compared(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """After twice the windows in which the other one changes its plan, nothing was changed."""
    spec = dataclasses.replace(SPEC, deterministic=True)
    enough = 2 * (SETTLE + WINDOWS + SETTLE + TRIAL) * LEAST_SECONDS
    heard: list[Record] = []
    with training(digits_store, tmp_path / "job", spec, ABSURD) as child, pytest.raises(ChildStopped):
        for record in iter_records(child, lambda: None):
            heard.append(record)
            if sum(map(seconds, heard)) > enough:
                child.ask_to_stop()
    kinds = {record.kind for record in heard}
    assert "prediction" in kinds
    assert "adapted" not in kinds


@pytest.mark.slow
def test_being_compared_changes_no_weight(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """A deterministic training ends with the same weights, bit for bit, with and without a prediction."""
    spec = dataclasses.replace(SPEC, deterministic=True, epochs=2)
    found = set()
    for name, prediction in (("with", ABSURD), ("without", None)):
        with training(digits_store, tmp_path / name, spec, prediction) as child:
            records = list(iter_records(child, lambda: None))
        assert any(record.kind == "prediction" for record in records) == (prediction is not None)
        found.add(records[-1].payload["model_sha256"])
    assert len(found) == 1
