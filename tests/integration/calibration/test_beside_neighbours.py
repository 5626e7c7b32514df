"""A real calibration beside busy processes begins with as many threads as processors are free."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from calibration.cache.plan_cache import PlanCache
from calibration.choose import PlanChoice, choose_plan
from calibration.task import CalibrationContext, Options
from preflight.container.resources import detect
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from preflight.contract.verdicts import ADOPTED
from training.data.dataset_info import DatasetInfo

SPEC = TrainSpec(dataset="digits", model="cnn", batch_size=128, epochs=40)
BUSY = "while True: pass"
PROCESSORS = len(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(PROCESSORS < 2, reason="one processor has no room for two threads")


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run busy processes on the processors of this one."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def chosen(store: DatasetInfo, directory: Path) -> PlanChoice:
    """Return the plan that a calibration with an empty cache chooses for a thread on each processor."""
    resources = replace(detect(), cores=PROCESSORS)
    own = Plan(threads=PROCESSORS, micro_batch=SPEC.batch_size)
    context = CalibrationContext(
        resources=resources, store=store, cache=PlanCache(directory / "cache"), directory=directory,
        environment=dict(os.environ),
    )  # fmt: skip
    warnings: list[dict[str, JsonValue]] = []

    def emit(kind: str, fields: dict[str, JsonValue]) -> None:
        if kind == "warning":
            warnings.append(fields)

    choice = choose_plan(SPEC, own, context, Options(), emit, lambda: None)
    assert warnings == []
    return choice


@pytest.mark.slow  # tests/unit/calibration/search/test_neighbours.py simulates it
def test_a_calibration_beside_neighbours_measures_the_free_processors_first(
    digits_store: DatasetInfo, tmp_path: Path
) -> None:
    """With every processor in use one thread is measured first, and all of them when they have left.

    Which of them wins in the end is what the machine says: other tests may run beside these neighbours.
    """
    with neighbours(PROCESSORS):
        choice = chosen(digits_store, tmp_path)
    assert choice.finding is not None
    own, default = choice.finding.trials[:2]
    assert (own.knob, own.plan.threads) == ("own", PROCESSORS)
    assert (default.knob, default.plan.threads) == ("default", 1)
    assert choice.plan in [own.plan, *(trial.plan for trial in choice.finding.trials if trial.verdict in ADOPTED)]
    assert choice.finding.confidence == "low"
    assert choice.prediction is not None
    assert choice.prediction.threads_alone == PROCESSORS
