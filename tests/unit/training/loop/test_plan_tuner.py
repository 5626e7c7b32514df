"""The plan tuner on a real step: which plan it applies and what it records."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.files.memory_files import container_memory
from support.worker.records import Records

from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.tuner.surroundings import Container
from training.loop.plan_tuner import PlanTuner
from training.prediction import Prediction
from training.step.train_step import TrainStep

SPEC = TrainSpec(dataset="digits", model="cnn", batch_size=64)
PLAN = Plan(threads=2, micro_batch=64)
FAST = Prediction(epoch_s=1e-6, low_s=1e-6, high_s=1e-6, step_s=1e-8)
"""Nothing is as fast."""


@pytest.fixture(autouse=True)
def torch_state(torch_as_it_was: None) -> None:  # noqa: ARG001 - for what it does afterwards
    torch.set_num_threads(PLAN.threads)


Made = Callable[..., tuple[PlanTuner, TrainStep, Records]]


@pytest.fixture
def made(tmp_path: Path) -> Made:

    def make(
        spec: TrainSpec = SPEC, plan: Plan = PLAN, prediction: Prediction | None = FAST
    ) -> tuple[PlanTuner, TrainStep, Records]:
        step, records = TrainStep(spec, plan, (1, 28, 28), 10), Records()
        return PlanTuner(step, records, prediction, Container(tmp_path)), step, records

    return make


def test_a_race_is_recorded_once_with_what_it_found(made: Made) -> None:
    """Steps far slower than predicted: other threads take turns with those of the plan, and one reason says so."""
    tuner, step, records = made()
    tuner.resume()
    plans = []
    deadline = time.monotonic() + 60
    while not records.written and time.monotonic() < deadline:
        time.sleep(0.02)
        plans.append(tuner.end_step())
    ((kind, payload),) = records.written
    assert (kind, payload["field"], payload["before"]) == ("adapted", "threads", 2)
    assert str(payload["reason"]).startswith("steps take ")
    assert "; 1 thread did " in str(payload["reason"])
    assert next(filter(None, plans)) == dataclasses.replace(PLAN, threads=1)
    assert step.plan.threads == payload["after"] == tuner.threads == torch.get_num_threads()


def test_a_short_memory_makes_the_micro_batch_smaller(made: Made) -> None:
    """A container of which 90 % are in use gets smaller pieces at once."""
    tuner, step, records = made()
    assert tuner.observe_window(50, 0.5, 0.9) == step.plan == dataclasses.replace(PLAN, micro_batch=32)
    assert [tuner.observe_window(50, 0.5, 0.9) for _ in range(3)] == [None] * 3
    assert "batch statistics are those of 32 samples" in str(records.of("adapted")[0]["reason"])


def test_a_deterministic_job_is_never_changed(made: Made) -> None:
    """Neither for its speed nor for its memory."""
    tuner, step, records = made(dataclasses.replace(SPEC, deterministic=True))
    assert [tuner.observe_window(50, 0.5, 0.99) or tuner.end_step() for _ in range(100)] == [None] * 100
    assert (step.plan, records.written) == (PLAN, [])


def test_without_a_prediction_threads_stay(made: Made) -> None:
    """Nothing says then that they are slow; memory is looked after all the same."""
    tuner, step, records = made(prediction=None)
    assert [tuner.observe_window(50, 0.5, None) or tuner.end_step() for _ in range(100)] == [None] * 100
    assert records.written == []
    assert tuner.observe_window(50, 0.5, 0.9) == step.plan == dataclasses.replace(PLAN, micro_batch=32)


def test_apply_plan_refuses_plans_for_another_process() -> None:
    """A step refuses a plan that needs another process."""
    step = TrainStep(SPEC, PLAN, (1, 28, 28), 10)
    with pytest.raises(ValueError, match="more than threads and micro_batch"):
        step.apply_plan(dataclasses.replace(PLAN, precision="bfloat16"))
    assert step.plan == PLAN
    assert step.batch_statistics


def test_memory_use_is_read_each_time(tmp_path: Path) -> None:
    """It is that of the working set; None where there is nothing to read."""
    use = container_memory(tmp_path, 600)
    assert (use.bytes(), use.limit) == (600, 1000)
    (tmp_path / "cg/memory.stat").write_text("inactive_file 100\nactive_file 50\n")
    assert use.bytes() == 450
    (tmp_path / "cg/memory.current").unlink()
    assert use.bytes() is None
