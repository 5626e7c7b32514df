"""Learning-rate schedules: exact values, and bounds that hold for every spec."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.config.spec import Schedule, TrainSpec
from training.optim.schedule import learning_rate

PEAK = 0.5


def spec(schedule: Schedule, *, warmup: float = 0.2, step_epochs: int = 10, step_factor: float = 0.1) -> TrainSpec:
    return TrainSpec(
        dataset="digits", model="cnn", schedule=schedule, learning_rate=PEAK, warmup=warmup,
        step_epochs=step_epochs, step_factor=step_factor,
    )  # fmt: skip


def rates(of: TrainSpec, steps: int, steps_per_epoch: int = 1) -> list[float]:
    return [learning_rate(of, step, steps, steps_per_epoch) for step in range(steps)]


def test_one_cycle_is_two_straight_lines() -> None:
    """With 20 % of 10 steps to warm up it is at the peak at step 2 and falls by an eighth of it per step."""
    expected = [1 / 2, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert rates(spec("one-cycle"), 10) == pytest.approx([PEAK * factor for factor in expected])


def test_one_cycle_without_warm_up_starts_at_the_peak() -> None:
    """With no warm-up it is one line from the peak down."""
    assert rates(spec("one-cycle", warmup=0.0), 4) == pytest.approx([PEAK, PEAK * 3 / 4, PEAK / 2, PEAK / 4])


def test_cosine_is_half_a_cosine() -> None:
    """From the peak over its half in the middle towards 0."""
    expected = [1, (2 + math.sqrt(2)) / 4, 1 / 2, (2 - math.sqrt(2)) / 4]
    assert rates(spec("cosine"), 4) == pytest.approx([PEAK * factor for factor in expected])


def test_step_drops_after_every_so_many_epochs() -> None:
    """With 3 steps an epoch and 2 epochs to a drop, the rate is halved after steps 6 and 12."""
    expected = [PEAK] * 6 + [PEAK / 2] * 6 + [PEAK / 4] * 3
    assert rates(spec("step", step_epochs=2, step_factor=0.5), 15, steps_per_epoch=3) == pytest.approx(expected)


def test_constant_is_constant() -> None:
    """The peak throughout."""
    assert rates(spec("constant"), 7) == [PEAK] * 7


@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "step", "constant"])
def test_a_single_step_has_a_rate(schedule: Schedule) -> None:
    """The shortest training of all runs at the peak."""
    assert rates(spec(schedule), 1) == [PEAK]


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
