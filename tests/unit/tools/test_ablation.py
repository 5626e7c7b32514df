"""The ablation: a search that is replayed on recorded steps decides as the recording says, and its parts can be off."""

import itertools
from dataclasses import replace
from random import Random

import pytest

from calibration.measure.protocol import Measured, Probed
from preflight.contract.plan import Plan
from tools.ablation.mechanisms import MECHANISMS
from tools.ablation.recording import RecordedPlan, Recording
from tools.ablation.replay import epoch_seconds, replayed, task_of
from tools.bench.calibration.matrix.grid import FORMATS, PRECISIONS

OWN = Plan(threads=2, micro_batch=128)
FASTEST = replace(OWN, precision="bfloat16", memory_format="channels_last")


def step_seconds(plan: Plan) -> float:
    seconds = 0.03 / (1.8 if plan.precision == "bfloat16" else 1.0) / (1.2 if plan.memory_format != "contiguous" else 1)
    return seconds * {1: 1.6, 2: 1.0, 16: 3.0}[plan.threads] * (1.2 if plan.loader_workers else 1.0)


@pytest.fixture(scope="module")
def recorded() -> Recording:
    """A cell in which bfloat16 with channels_last on two threads is fastest."""
    random = Random(3)  # noqa: S311 - dice
    grid = itertools.product((2, 1), PRECISIONS, FORMATS)
    plans = [Plan(threads=count, micro_batch=128, precision=one, memory_format=form) for count, one, form in grid]
    plans += [replace(OWN, loader_workers=1, prefetch_factor=2), replace(OWN, interop=2), replace(OWN, eval_batch=512)]
    plans.append(replace(OWN, threads=16))

    def block(plan: Plan) -> Measured:
        seconds = tuple(step_seconds(plan) * random.lognormvariate(0, 0.05) for _ in range(30))
        return Measured(
            seconds=seconds, fetch_s=0.0, warm=(2 * step_seconds(plan),) * 3, start_s=0.0, peak_bytes=400 << 20,
            batch_statistics=True, disturbed="",
        )  # fmt: skip

    return Recording(
        version="1", date="today", machine="here", cell="2cpu-cnn-2g", processors=2, busy=False, batch_size=128,
        samples=128, steps_per_epoch=400, validation=1000, threads=(2, 1), affinity=2, bfloat16=True,
        memory_bytes=1 << 31, start_s=1.5, gauge_s=0.004,
        probes={
            size: Probed(
                peak_bytes=(300 + size) << 20, seconds=0.03 * size / 128, batch_statistics=True,
                slow_weight_gradients=False,
            ) for size in (8, 32)
        },
        plans=tuple(
            RecordedPlan(
                plan=plan, blocks=tuple(block(plan) for _ in range(4)), sample_s=step_seconds(plan) / 400, cosine=0.999
            ) for plan in plans
        ),
    )  # fmt: skip


def test_a_replayed_search_finds_the_fastest_recorded_plan(recorded: Recording) -> None:
    """Its clock is that of the recording, and its prediction near what the recording says."""
    found = replayed(recorded, task_of(recorded, 30), seed=1)
    assert found.plan == FASTEST
    assert found.prediction.epoch_s == pytest.approx(epoch_seconds(recorded, FASTEST), rel=0.05)
    assert found.import_seconds == pytest.approx(1.5, abs=3.0)
    assert found == replayed(recorded, task_of(recorded, 30), seed=1)


@pytest.mark.parametrize("name", MECHANISMS)
def test_each_mechanism_can_be_off(recorded: Recording, name: str) -> None:
    """Without it the search ends with a plan of the recording, and afterwards all is as before."""
    task = task_of(recorded, 1, replace(OWN, threads=16))
    before = replayed(recorded, task, seed=2)
    with MECHANISMS[name].turned_off():
        found = replayed(recorded, task, seed=2)
    assert epoch_seconds(recorded, found.plan) < epoch_seconds(recorded, replace(OWN, threads=16))
    assert replayed(recorded, task, seed=2) == before
