"""Statistics of timed steps."""

import math
import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.statistics import MIN_PAIRS, P95_SAMPLES, compare, mean_step, scatter, slowest, step_interval, widened

STEPS = st.lists(st.floats(1e-4, 10), min_size=1, max_size=8)
PAIRS = st.lists(st.tuples(STEPS, STEPS), min_size=1, max_size=6)


def drawn(random: Random, median: float, count: int, noise: float) -> list[float]:
    """Return noisy steps."""
    return [median * math.exp(random.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6])
def test_exact_steps_have_an_exact_ratio(count: int) -> None:
    """Above 1 the challenger is faster; without noise the interval is the ratio itself."""
    comparison = compare([((0.2, 0.2), (0.1, 0.1))] * count)
    assert (comparison.ratio, comparison.low, comparison.high) == pytest.approx((2.0, 2.0, 2.0))
    assert comparison.pairs == count


@pytest.mark.parametrize("count", [3, 4, 6])
def test_a_drift_that_meets_both_says_nothing(count: int) -> None:
    """What slows the machine for a while slows both halves of a pair: the ratio is as if it had not been."""
    comparison = compare([([0.1 * (1 + turn)] * 4, [0.08 * (1 + turn)] * 4) for turn in range(count)])
    assert (comparison.ratio, comparison.low, comparison.high) == pytest.approx((1.25, 1.25, 1.25))


def test_one_slow_block_or_step_decides_nothing() -> None:
    """A disturbed pair does not move the ratio, and of seven not even the interval; a block counts by its median."""
    pairs = [([0.1] * 4, [0.05] * 4)] * 6 + [([0.1] * 4, [5.0] * 4)]
    comparison = compare(pairs)
    assert (comparison.ratio, comparison.low) == pytest.approx((2.0, 2.0))
    assert compare(pairs[1:]).ratio == pytest.approx(2.0)
    assert compare([([0.1, 0.1, 9.0], [0.05, 0.05, 7.0])] * 3).ratio == pytest.approx(2.0)


@given(pairs=PAIRS)
def test_any_comparison_is_sound(pairs: list[tuple[list[float], list[float]]]) -> None:
    """0 < low <= ratio <= high < inf; the same steps give the same answer, the other way round its inverse."""
    comparison = compare(pairs)
    assert 0 < comparison.low <= comparison.ratio <= comparison.high < math.inf
    assert comparison.pairs == len(pairs)
    assert compare(pairs) == comparison, "the dice of the bootstrap are loaded"
    back = compare([(challenger, best) for best, challenger in pairs])
    assert comparison.ratio == pytest.approx(1 / back.ratio)


@pytest.mark.parametrize("count", [1, MIN_PAIRS - 1])
def test_few_pairs_are_judged_by_their_steps(count: int) -> None:
    """Where pairs are too few to be resampled, the spread of the steps makes the interval."""
    random = Random(1)  # noqa: S311 - dice
    pairs = [(drawn(random, 0.1, 12, 0.1), drawn(random, 0.1, 12, 0.1)) for _ in range(count)]
    comparison = compare(pairs)
    assert comparison.low < comparison.ratio < comparison.high


@pytest.mark.parametrize(("count", "steps"), [(4, 4), (6, 8), (2, 10), (1, 16)])
def test_the_interval_mostly_holds_the_truth(count: int, steps: int) -> None:
    """Of 200 races at 3 % noise, the true ratio lies within, or 2 % beside it, in nine of ten."""
    random, hits = Random(7), 0  # noqa: S311 - dice
    for _ in range(200):
        pairs = [(drawn(random, 0.1, steps, 0.03), drawn(random, 0.1 / 1.2, steps, 0.03)) for _ in range(count)]
        comparison = compare(pairs)
        hits += comparison.low / 1.02 <= 1.2 <= comparison.high * 1.02
    assert hits >= 180


@given(blocks=st.lists(STEPS, min_size=1, max_size=6))
def test_the_interval_of_a_step_holds_its_typical_value(blocks: list[list[float]]) -> None:
    """The centre is the median of the blocks' means, which slow steps between quick ones raise."""
    centre, low, high = step_interval(blocks)
    assert centre == statistics.median(map(statistics.fmean, blocks))
    rounding = 1 + 1e-9
    assert min(map(min, blocks)) / rounding <= low <= centre <= high <= max(map(max, blocks)) * rounding


def test_a_quota_leaves_each_block_another_share() -> None:
    """A training has its share of all, in proportion to their steps; a disturbance of one block would not count."""
    blocks = [(0.1,) * 6, (0.2,) * 2, (0.1,) * 2]
    assert step_interval(blocks)[0] == pytest.approx(0.1)
    centre, low, high = step_interval(blocks, mean_step)
    assert centre == pytest.approx(0.12)
    assert low < centre < high


def test_a_steady_step_has_no_interval() -> None:
    """And blocks that differ from one another widen it."""
    assert step_interval([(0.1, 0.1), (0.1,)]) == (0.1, 0.1, 0.1)
    _, low, high = step_interval([(0.1,) * 8, (0.2,) * 8, (0.1,) * 8])
    assert low == 0.1
    assert high == 0.2


@pytest.mark.parametrize(("count", "name"), [(1, "max"), (P95_SAMPLES - 1, "max"), (P95_SAMPLES, "p95"), (500, "p95")])
def test_the_slowest_steps_are_called_what_they_are(count: int, name: str) -> None:
    """The 95th percentile of a few samples is their maximum, and is named so."""
    kind, value = slowest([float(number) for number in range(1, count + 1)])
    assert kind == name
    assert value == count if name == "max" else value == pytest.approx(0.95 * count, rel=0.02)


@given(low=st.floats(0.5, 1), high=st.floats(1, 2), deviation=st.floats(0, 0.3))
def test_another_error_widens_an_interval_on_both_sides(low: float, high: float, deviation: float) -> None:
    """By no more than its own 95 %, and by nothing where there is none."""
    down, up = widened(1.0, low, high, deviation)
    other = math.exp(1.96 * deviation)
    assert low / other * 0.9999 <= down <= min(low, 1 / other) * 1.0001
    assert max(high, other) * 0.9999 <= up <= high * other * 1.0001
    assert widened(1.0, low, high, 0.0) == pytest.approx((low, high))


def test_what_series_differ_within_themselves_is_pooled() -> None:
    """Each has a speed of its own, which says nothing; a single measurement says nothing, either."""
    assert scatter([]) == scatter([[0.1], [0.7]]) == 0.0
    assert scatter([[0.1, 0.1], [0.7, 0.7, 0.7]]) == 0.0
    random = Random(2)  # noqa: S311 - dice
    series = [
        [scale * math.exp(random.gauss(0, 0.1)) for _ in range(4)] for scale in (0.01, 0.1, 1.0) for _ in range(50)
    ]
    assert scatter(series) == pytest.approx(0.1, rel=0.1)


def test_a_widened_interval_holds_the_measured_epoch() -> None:
    """In 95 % of 200 trainings on machines whose speed wanders by 5 %, after eight blocks of steps at 3 % noise."""
    random, held = Random(3), 0  # noqa: S311 - dice
    for _ in range(200):
        then, later = (math.exp(random.gauss(0, 0.05 / math.sqrt(2))) for _ in range(2))
        centre, low, high = step_interval([drawn(random, 0.1 * then, 8, 0.03) for _ in range(8)])
        down, up = widened(centre, low, high, 0.05)
        held += down <= 0.1 * later <= up
    assert 184 <= held <= 198
