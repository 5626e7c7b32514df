"""Calibration of plans with several processes: real steps, with real sums of gradients between real processes."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.worker.plain_model import PLAIN_MODEL
from support.worker.python_path import importing

from calibration.cache.plan_cache import PlanCache
from calibration.choose import choose_plan
from calibration.measure.backend import WorkerLost
from calibration.measure.process_pool import ProcessPool
from calibration.measure.protocol import Measure
from calibration.task import CalibrationContext, Options
from preflight.container.resources import Resources
from preflight.contract.plan import Plan
from preflight.contract.spec import TrainSpec
from training.data.dataset_info import DatasetInfo

SPEC = TrainSpec(dataset="digits", model="plain", batch_size=32, epochs=10_000)
ONE = Plan(threads=2, micro_batch=32, eval_batch=100)
TWO = replace(ONE, processes=2, threads=1)
TWO_CORES = Resources(
    cores=2, quota=None, memory_bytes=4 << 30, affinity=frozenset({0, 1}), working_set_bytes=None,
    cores_source="affinity", memory_source="MemTotal", warnings=(),
)  # fmt: skip


@pytest.fixture
def environment(tmp_path: Path, install_package: Callable[..., None]) -> dict[str, str]:
    """Return an environment with a model without batch norms."""
    install_package("preflight.models", {"plain": "plain:plain"}, "plain", PLAIN_MODEL)
    return importing(tmp_path / "site")


@pytest.fixture
def pool(digits_store: DatasetInfo, tmp_path: Path, environment: dict[str, str]) -> Iterator[ProcessPool]:
    """Yield a pool of measuring processes, none of which outlives it."""
    before = psutil.Process().children(recursive=True)  # what other tests share
    with ProcessPool(SPEC, digits_store.path, tmp_path, environment, lambda: None) as pool:
        yield pool
    assert psutil.Process().children(recursive=True) == before


def test_every_question_is_answered_by_all_processes_of_a_plan(pool: ProcessPool) -> None:
    """Two plans stay warm side by side, and what two processes take counts twice."""
    other, one = replace(TWO, micro_batch=8), pool.measure(Measure(plan=ONE, steps=3, settle=0, warm_up=2))
    for plan in (TWO, other, TWO):
        measured = pool.measure(Measure(plan=plan, steps=4, settle=1, warm_up=2))
        assert len(measured.seconds) == 4
        assert all(second > 0 for second in measured.seconds)
    assert measured.peak_bytes > 1.3 * one.peak_bytes
    assert len(pool.measure(Measure(plan=TWO, steps=2, settle=0, warm_up=1, samples=64)).seconds) == 2
    assert pool.probe(replace(TWO, micro_batch=4)).seconds > 0
    assert pool.validate(TWO, 100).sample_s > 0
    assert pool.gauge(TWO).seconds > 0
    assert pool.check(replace(TWO, precision="bfloat16"), TWO, steps=8, samples=32).cosine > 0.9
    pool.isolate(TWO)
    assert len(pool.measure(Measure(plan=TWO, steps=1, settle=0, warm_up=1)).seconds) == 1


@pytest.mark.slow
def test_a_killed_process_costs_the_measurement_and_no_more(pool: ProcessPool) -> None:
    before = psutil.Process().children()
    pool.measure(Measure(plan=TWO, steps=1, settle=0, warm_up=1))
    (leader,) = set(psutil.Process().children()) - set(before)
    (other,) = leader.children()
    os.kill(other.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="was killed"):
        pool.measure(Measure(plan=TWO, steps=5, settle=0, warm_up=1))
    assert len(pool.measure(Measure(plan=TWO, steps=5, settle=0, warm_up=1)).seconds) == 5


def test_processes_are_measured_where_the_job_names_the_knob(
    digits_store: DatasetInfo, tmp_path: Path, environment: dict[str, str]
) -> None:
    """On two cores, too; the trial has what both of them took."""
    directory = tmp_path / "child"
    directory.mkdir()
    around = CalibrationContext(
        resources=TWO_CORES, store=digits_store, cache=PlanCache(tmp_path / "cache"),
        directory=directory, environment=environment,
    )  # fmt: skip
    options = Options(knobs=("processes",), samples=8, seconds=600.0)
    before = psutil.Process().children(recursive=True)
    choice = choose_plan(SPEC, ONE, around, options, lambda *_: None, lambda: None)
    assert choice.finding is not None
    _, trial = choice.finding.trials
    assert (trial.knob, trial.plan) == ("processes", TWO)
    assert trial.verdict in ("won", "level", "lost", "dropped"), trial
    own = choice.finding.trials[0]
    assert (trial.peak_bytes or 0) > (own.peak_bytes or 0) > 0
    assert psutil.Process().children(recursive=True) == before
