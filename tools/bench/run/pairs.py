"""Pairs, a line of the result file each: which fixed settings were fastest, and how `preflight run` compares."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pydantic import TypeAdapter

from preflight.statistics import MIN_PAIRS, Comparison, compare
from tools.bench.run.cells import GRID, PLAIN, TUNED, Cell

PRUNED: Final = 0.8
"""Fixed settings below this share of the best in the median are not measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One turn of all variants in a cell."""

    cell: Cell
    rates: dict[str, float]
    """Variant -> steps a second."""
    at: str
    version: str
    machine: str
    load: float
    """Load average before it."""
    counted: float
    """Seconds of steps that counted of each."""
    after: float
    """Seconds of `preflight run` before those."""


PAIR: Final = TypeAdapter(Pair)


def fixed_to_measure(pairs: Sequence[Pair]) -> list[str]:
    """Return the fixed settings that the next pair of a cell measures."""
    if not pairs:
        return list(GRID)
    best = _median_rates(pairs)
    return [name for name in GRID if best.get(name, 0.0) >= PRUNED * max(best.values())]


def best_fixed(pairs: Sequence[Pair]) -> tuple[str, float]:
    """Return the fixed settings that were fastest in the median of all pairs of a cell, and their steps a second."""
    whole = {name: rate for name, rate in _median_rates(pairs).items() if all(name in pair.rates for pair in pairs)}
    name = max(whole, key=whole.__getitem__)
    return name, whole[name]


def ratio_to(other: str, pairs: Sequence[Pair]) -> Comparison:
    """Return how many times the steps `preflight run` made: the median over pairs with its 95 % interval.

    Of fewer pairs than can be resampled, the ends are those of the pairs themselves.
    """
    found = compare([((1 / pair.rates[other],), (1 / pair.rates[TUNED],)) for pair in pairs])
    if len(pairs) >= MIN_PAIRS:
        return found
    ratios = [pair.rates[TUNED] / pair.rates[other] for pair in pairs]
    return Comparison(found.ratio, min(ratios), max(ratios), len(pairs))


def _median_rates(pairs: Sequence[Pair]) -> dict[str, float]:
    names = {name for pair in pairs for name in pair.rates} - {PLAIN, TUNED}
    return {name: median(pair.rates[name] for pair in pairs if name in pair.rates) for name in names}
