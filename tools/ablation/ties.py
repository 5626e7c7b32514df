"""Ties: whether the 95th percentile of the steps would tell which of two plans with equal medians trains faster.

A training waits for all of its steps, so that the mean decides which plan is faster. Steps are drawn from two plans
whose quick steps are alike and whose slow ones differ; the one with the lower figure is taken.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from preflight.statistics import slowest
from tools.bench.record import Record, start

SCATTER: Final = 0.03
"""Standard deviation of the logarithm of a step."""
STEPS: Final = (32, 60, 240)
"""Measured of a plan: the most of a memory tier, those from which on there is a 95th percentile, and a long race."""
Tail = tuple[float, float]
"""Share of the slow steps, and how many times as long they take."""
CASES: Final[Mapping[str, tuple[Tail, Tail]]] = {
    "none slow, or 8 % of 1.5x": ((0.0, 1.0), (0.08, 1.5)),
    "none slow, or 4 % of 1.5x": ((0.0, 1.0), (0.04, 1.5)),
    "none slow, or 1 % of 3x": ((0.0, 1.0), (0.01, 3.0)),
    "8 % of 1.1x, or 3 % of 3x": ((0.08, 1.1), (0.03, 3.0)),
}
"""Words -> tails of the faster plan and of the slower one."""
FIGURES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "95th percentile": lambda steps: slowest(steps)[1], "mean": statistics.fmean,
}  # fmt: skip


def simulate(seeds: int) -> dict[tuple[str, int], dict[str, float]]:
    """Return of each case and number of steps how often each figure takes the faster plan."""
    found = {}
    for case, tails in CASES.items():
        for count in STEPS:
            random = Random(count)  # noqa: S311 - dice
            right = dict.fromkeys(FIGURES, 0)
            for _ in range(seeds):
                faster, slower = ([_step(random, *tail) for _ in range(count)] for tail in tails)
                for name, figure in FIGURES.items():
                    right[name] += figure(faster) < figure(slower)
            found[case, count] = {name: times / seeds for name, times in right.items()}
    return found


def _step(random: Random, share: float, times: float) -> float:
    return random.lognormvariate(0, SCATTER) * (times if random.random() < share else 1.0)


def print_ties(seeds: int = 500) -> None:
    """Print the table, and what follows."""
    record: Record = start("ties", "python -m tools.ablation ties", "nothing: steps are drawn")
    record.head(
        "slow steps of the faster plan, or of the slower one", "steps", *(f"{name} is right" for name in FIGURES)
    )
    for (case, count), shares in simulate(seeds).items():
        record.row(case, str(count), *(f"{share:.0%}" for share in shares.values()))
