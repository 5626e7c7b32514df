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
from preflight.tuner.tuning import LOOK_SECONDS, WINDOWS
from training.data.dataset_info import DatasetInfo
from training.loop import child as training_child
from training.loop.child import TrainingRequest
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
    """Warned once a cause, and a race is recorded with its reason and what came of it."""
    heard: list[Record] = []
    with training(digits_store, tmp_path / "job", SPEC, ABSURD) as child, pytest.raises(ChildStopped):
        for record in iter_records(child, lambda: None):
            heard.append(record)
            early = any(record.kind == "prediction" and not record.payload["whole"] for record in heard)
            raced = [index for index, record in enumerate(heard) if record.kind == "adapted"]
            if early and raced and any(record.kind == "prediction" for record in heard[raced[0] :]):
                child.ask_to_stop()
    raced_one = next(record.payload for record in heard if record.kind == "adapted")
    assert (raced_one["field"], raced_one["before"]) == ("threads", 2)
    assert raced_one["after"] in (1, 2)
    ending = "staying with 1 thread" if raced_one["after"] == 1 else "going back to 2 threads"
    reason = rf"(steps take \S+ times as long as before|other processes took .*); 1 thread did .*; {ending}"
    assert re.fullmatch(reason, str(raced_one["reason"]))
    compared = [record.payload for record in heard if record.kind == "prediction"]
    assert sum(not payload["whole"] for payload in compared) == 1
    causes = {payload["cause"] for payload in compared}
    assert {"adapted"} <= causes <= {"noisy", "calibration", "adapted"}
    warnings = [str(record.payload["message"]) for record in heard if record.kind == "warning"]
    assert len(warnings) == len(causes - {"adapted"})  # a busy machine may be slow only after the first change


@pytest.mark.slow  # tests/unit/training/loop/test_plan_tuner.py has the decision
def test_a_deterministic_training_is_only_compared(digits_store: DatasetInfo, tmp_path: Path) -> None:
    """For longer than the other one takes to race, nothing is changed."""
    spec = dataclasses.replace(SPEC, deterministic=True)
    heard: list[Record] = []
    with training(digits_store, tmp_path / "job", spec, ABSURD) as child, pytest.raises(ChildStopped):
        for record in iter_records(child, lambda: None):
            heard.append(record)
            if sum(map(seconds, heard)) > WINDOWS * LOOK_SECONDS + 1:
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
