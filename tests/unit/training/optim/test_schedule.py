"""Learning-rate schedules: exact values, and bounds that hold for every spec."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.contract.spec import Schedule, TrainSpec
from training.optim.schedule import learning_rate

PEAK = 0.5


def spec(schedule: Schedule, *, warmup: float = 0.2, step_epochs: int = 10, step_factor: float = 0.1) -> TrainSpec:
    return TrainSpec(
        dataset="digits", model="cnn", schedule=schedule, learning_rate=PEAK, warmup=warmup,
        step_epochs=step_epochs, step_factor=step_factor,
    )  # fmt: skip


def rates(of: TrainSpec, steps: int, steps_per_epoch: int = 1) -> list[float]:
    return [learning_rate(of, step, steps, steps_per_epoch) for step in range(steps)]


SLOPES = {
    "one-cycle: up for 20 % of 10 steps, down by an eighth a step": (
        spec("one-cycle"), 1, [1 / 2, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8],
    ),
    "one-cycle without warm-up: one line from the peak down": (
        spec("one-cycle", warmup=0.0), 1, [1, 3 / 4, 1 / 2, 1 / 4],
    ),
    "cosine: from the peak over its half in the middle towards 0": (
        spec("cosine"), 1, [1, (2 + math.sqrt(2)) / 4, 1 / 2, (2 - math.sqrt(2)) / 4],
    ),
    "step: with 3 steps an epoch and 2 epochs to a drop, halved after steps 6 and 12": (
        spec("step", step_epochs=2, step_factor=0.5), 3, [1] * 6 + [1 / 2] * 6 + [1 / 4] * 3,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOPES)
def test_rates_are_these_shares_of_the_peak(name: str) -> None:
    """Step by step, by hand."""
    of, steps_per_epoch, shares = SLOPES[name]
    assert rates(of, len(shares), steps_per_epoch) == pytest.approx([PEAK * share for share in shares])


@pytest.mark.parametrize(
    ("schedule", "steps"), [("one-cycle", 1), ("cosine", 1), ("step", 1), ("constant", 1), ("constant", 7)]
)
def test_a_single_step_and_a_constant_schedule_run_at_the_peak(schedule: Schedule, steps: int) -> None:
    """The shortest training of all has a rate, too."""
    assert rates(spec(schedule), steps) == [PEAK] * steps


WARMUPS = st.floats(0, 1, exclude_max=True)


@given(schedule=st.sampled_from(["one-cycle", "cosine", "constant"]), warmup=WARMUPS, steps=st.integers(1, 10**6),
       data=st.data())  # fmt: skip
def test_a_rate_is_above_zero_and_at_most_the_peak(
    schedule: Schedule, warmup: float, steps: int, data: st.DataObject
) -> None:
    """No step of any length of training stands still or exceeds the peak."""
    step = data.draw(st.integers(0, steps - 1))
    assert 0 < learning_rate(spec(schedule, warmup=warmup), step, steps, 1) <= PEAK


@given(step=st.integers(0, 10**7), per_epoch=st.integers(1, 1000), epochs=st.integers(1, 10_000),
       factor=st.floats(0, 1, exclude_min=True))  # fmt: skip
def test_drops_never_leave_the_bounds(step: int, per_epoch: int, epochs: int, factor: float) -> None:
    """However often the rate drops, it stays within 0 and the peak, and never rises."""
    of = spec("step", step_epochs=epochs, step_factor=factor)
    now, later = (learning_rate(of, at, 10**8, per_epoch) for at in (step, step + per_epoch))
    assert 0 <= later <= now <= PEAK


@given(warmup=WARMUPS, steps=st.integers(1, 300))
def test_one_cycle_rises_to_its_only_peak_and_falls(warmup: float, steps: int) -> None:
    """It rises while warming up, is at the peak with the step that ends that, and falls from there."""
    found = rates(spec("one-cycle", warmup=warmup), steps)
    peak = min(max(0, math.ceil(warmup * steps) - 1), steps - 1)
    assert found[peak] == pytest.approx(PEAK)
    assert all(earlier < later for earlier, later in pairwise(found[: peak + 1]))
    assert all(earlier >= later - 1e-12 for earlier, later in pairwise(found[peak:]))
