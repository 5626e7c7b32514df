"""The plan tuner on a real step: which plan it applies and what it records."""

import dataclasses
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.files.memory_files import container_memory
from support.worker.records import Records

from preflight.container.counters import SystemCounters
from preflight.container.interference import CounterSample
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.loop.tuning.plan_tuner import PlanTuner
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
        return PlanTuner(step, records, prediction, SystemCounters(tmp_path)), step, records

    return make


def test_tuner_applies_and_records_a_change(made: Made) -> None:
    """Short windows are added up to one that counts; after four of them torch runs on one thread."""
    tuner, step, records = made()
    plans = [tuner.observe_window(5, 0.2, 0.6) for _ in range(8)]
    assert plans[:7] == [None] * 7
    assert plans[7] == step.plan == dataclasses.replace(PLAN, threads=1)
    assert torch.get_num_threads() == 1
    ((kind, payload),) = records.written
    assert (kind, payload["field"], payload["before"], payload["after"]) == ("adapted", "threads", 2, 1)
    assert "the machine was quiet; trying 1 thread" in str(payload["reason"])


def test_counters_are_sampled_often_only_while_training_is_slow(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each slow window, and once to say why; else every two seconds."""
    tuner, step, _ = made(prediction=Prediction(epoch_s=5.0, low_s=5.0, high_s=5.0, step_s=0.005))
    look = SystemCounters.sample
    looks = itertools.count()

    def counted(machine: SystemCounters) -> CounterSample:
        next(looks)
        return look(machine)

    monkeypatch.setattr(SystemCounters, "sample", counted)
    assert [tuner.observe_window(100, 0.5, 0.6) for _ in range(50)] == [None] * 50
    assert next(looks) <= 1
    looks = itertools.count()
    assert [tuner.observe_window(100, 1.0, 0.6) for _ in range(2)] == [None, None]
    assert next(looks) == 2
    assert tuner.observe_window(100, 1.0, 0.6) == step.plan
    assert next(looks) == 5


def test_more_threads_come_once_the_neighbour_of_the_calibration_has_left(made: Made, tmp_path: Path) -> None:
    """One thread was planned beside it; while its processor is in use, none is added."""
    planned = dataclasses.replace(PLAN, threads=1)
    tuner, step, records = made(plan=planned, prediction=dataclasses.replace(FAST, step_s=0.01, threads_alone=2))
    stat = tmp_path / "proc/stat"
    stat.parent.mkdir()
    began = time.monotonic()

    def observed(*, busy: bool) -> Plan | None:
        ticks = round(100 * (time.monotonic() - began)) if busy else 0
        stat.write_text("".join(f"cpu{name} {ticks} 0 0 9 9 0 0 0 0 0\n" for name in os.sched_getaffinity(0)))
        time.sleep(0.05)
        return tuner.observe_window(50, 0.5, None)

    assert [observed(busy=True) for _ in range(10)] == [None] * 10
    assert next(filter(None, (observed(busy=False) for _ in range(2)))) == step.plan == PLAN
    ((kind, payload),) = records.written
    assert (kind, payload["before"], payload["after"]) == ("adapted", 1, 2)


def test_memory_comes_before_threads(made: Made) -> None:
    """A container of which 90 % are in use gets smaller pieces at once, and the windows before say nothing."""
    tuner, step, records = made()
    assert tuner.observe_window(50, 0.5, 0.9) == step.plan == dataclasses.replace(PLAN, micro_batch=32)
    assert [tuner.observe_window(50, 0.5, 0.9) for _ in range(3)] == [None] * 3
    assert tuner.observe_window(50, 0.5, 0.9) == dataclasses.replace(PLAN, micro_batch=32, threads=1)
    assert "batch statistics are those of 32 samples" in str(records.of("adapted")[0]["reason"])


def test_a_deterministic_job_is_never_changed(made: Made) -> None:
    """Neither for its speed nor for its memory."""
    tuner, step, records = made(dataclasses.replace(SPEC, deterministic=True))
    assert [tuner.observe_window(50, 0.5, 0.99) for _ in range(100)] == [None] * 100
    assert (step.plan, records.written) == (PLAN, [])


def test_without_a_prediction_threads_stay(made: Made) -> None:
    """Nothing says then that they are slow; memory is looked after all the same."""
    tuner, step, records = made(prediction=None)
    assert [tuner.observe_window(50, 0.5, None) for _ in range(100)] == [None] * 100
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
