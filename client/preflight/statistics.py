"""Statistics: paired comparison and intervals of timed steps."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

RESAMPLES: Final = 400
"""Resamples of the bootstrap: enough for the second digit of a 95 % interval."""
MIN_PAIRS: Final = 3
"""Fewest pairs that are resampled; of fewer, the steps are, and no plan is dropped by them."""
P95_SAMPLES: Final = 60
"""Fewest steps of which at least three lie above the 95th percentile; of fewer, the slowest is reported."""

Z95: Final = 1.96
"""Standard deviations on either side that hold 95 % of a normal distribution."""

Seconds = Sequence[float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Speed of a challenger against the best plan; above 1 is faster."""

    ratio: float
    low: float
    high: float
    """Ends of the 95 % interval (percentile bootstrap, Efron & Tibshirani 1993, chapter 13)."""
    pairs: int

    def times(self, other: "Comparison") -> "Comparison":
        """Return the comparison of two in a row; the product of both intervals is wider than a 95 % interval."""
        return Comparison(
            self.ratio * other.ratio, self.low * other.low, self.high * other.high, min(self.pairs, other.pairs)
        )


def compare(pairs: Sequence[tuple[Seconds, Seconds]]) -> Comparison:
    """Compare blocks of steps that took turns: each pair is (seconds of the best, seconds of the challenger).

    The ratio is the median over the pairs of that of their median steps: what slows the machine for a while slows both
    halves of a pair. Where there are few pairs, their steps are resampled instead, each series by itself.
    """
    logs = [math.log(statistics.median(best) / statistics.median(challenger)) for best, challenger in pairs]
    random = Random(0)  # noqa: S311 - dice; the same steps shall give the same interval
    if len(pairs) >= MIN_PAIRS:
        drawn = [statistics.median(random.choices(logs, k=len(logs))) for _ in range(RESAMPLES)]
    else:
        best, challenger = ([step for pair in pairs for step in pair[side]] for side in (0, 1))
        drawn = [
            math.log(_resampled_median(random, best) / _resampled_median(random, challenger)) for _ in range(RESAMPLES)
        ]
    low, high = _interval(drawn)
    centre = statistics.median(logs)
    return Comparison(math.exp(centre), math.exp(min(low, centre)), math.exp(max(high, centre)), len(pairs))


def typical(blocks: Sequence[Seconds]) -> float:
    """Return the median of the blocks' mean steps: a disturbance lasts for some blocks, whatever their length.

    Means, as a training, too, waits for the slow steps between quick ones (docs/decisions.md).
    """
    return statistics.median(map(statistics.fmean, blocks))


def mean_step(blocks: Sequence[Seconds]) -> float:
    """Return the mean step of all blocks: a quota leaves a different part of each, and a training has its share of all.

    It is as near to what follows as the typical one, or nearer (docs/decisions.md, measured in all containers).
    """
    return statistics.fmean(second for block in blocks for second in block)


def step_interval(
    blocks: Sequence[Seconds], estimate: Callable[[Sequence[Seconds]], float] = typical
) -> tuple[float, float, float]:
    """Return the seconds of a step and the ends of their 95 % interval, blocks resampled before their steps."""
    random = Random(0)  # noqa: S311 - dice

    def drawn() -> float:
        chosen = random.choices(blocks, k=len(blocks))
        return estimate([random.choices(block, k=len(block)) for block in chosen])

    centre = estimate(blocks)
    low, high = _interval([drawn() for _ in range(RESAMPLES)])
    return centre, min(low, centre), max(high, centre)


def scatter(series: Sequence[Seconds]) -> float:
    """Return the standard deviation of the logarithm within series of repeated measurements, pooled over all of them.

    Blocks of one plan from all over a calibration tell how much the machine changes its speed in seconds.
    """
    logs = [[math.log(each) for each in one] for one in series]
    squares = sum((each - statistics.fmean(one)) ** 2 for one in logs for each in one)
    free = sum(len(one) - 1 for one in logs)
    return math.sqrt(squares / free) if free else 0.0


def widened(centre: float, low: float, high: float, deviation: float) -> tuple[float, float]:
    """Return the ends of a 95 % interval with another error, of standard deviation `deviation` of the log.

    Independent errors add up as squares.
    """
    other = Z95 * deviation
    down, up = (math.hypot(math.log(end / centre), other) for end in (low, high))
    return centre * math.exp(-down), centre * math.exp(up)


def slowest(seconds: Seconds) -> tuple[Literal["p95", "max"], float]:
    """Return the 95th percentile under the name "p95" where there are enough steps, else their maximum under "max"."""
    if len(seconds) < P95_SAMPLES:
        return "max", max(seconds)
    return "p95", statistics.quantiles(seconds, n=20)[-1]


def _resampled_median(random: Random, values: Seconds) -> float:
    return statistics.median(random.choices(values, k=len(values)))


def _interval(drawn: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(drawn)
    return ordered[round(0.025 * (len(ordered) - 1))], ordered[round(0.975 * (len(ordered) - 1))]
