"""Pairs, a line of the result file each: which fixed settings were fastest, and how `preflight run` compares."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from pydantic import TypeAdapter

from preflight.statistics import MIN_PAIRS, Comparison, compare
from tools.bench.run.cells import GRID, PLAIN, TUNED, Cell, Stretch

WHOLE: Final = 600.0
"""Seconds of a plain whole command that `preflight run` is compared with."""
PRUNED: Final = 0.8
"""Fixed settings below this share of the best in the median are not measured again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One turn of all variants in a cell."""

    cell: Cell
    runs: dict[str, Stretch]
    """Variant -> what it did."""
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
    whole = {name: rate for name, rate in _median_rates(pairs).items() if all(name in pair.runs for pair in pairs)}
    name = max(whole, key=whole.__getitem__)
    return name, whole[name]


def ratio_to(other: str, pairs: Sequence[Pair]) -> Comparison:
    """Return how many times the steps of another variant `preflight run` made: the median with its 95 % interval.

    Of fewer pairs than can be resampled, the ends are those of the pairs themselves.
    """
    return _compare([(1 / pair.runs[other].rate, 1 / pair.runs[TUNED].rate) for pair in pairs])


def whole_ratio(pairs: Sequence[Pair]) -> Comparison:
    """Return how many times as fast as the plain command a whole one of `WHOLE` seconds is, its start included.

    It is computed: what counted of a run goes on as it was.
    """
    return _compare([(WHOLE, pair.runs[TUNED].seconds_for(pair.runs[PLAIN].steps_in(WHOLE))) for pair in pairs])


def _compare(seconds: Sequence[tuple[float, float]]) -> Comparison:
    found = compare([((other,), (tuned,)) for other, tuned in seconds])
    if len(seconds) >= MIN_PAIRS:
        return found
    ratios = [other / tuned for other, tuned in seconds]
    return Comparison(found.ratio, min(ratios), max(ratios), len(seconds))


def _median_rates(pairs: Sequence[Pair]) -> dict[str, float]:
    names = {name for pair in pairs for name in pair.runs} - {PLAIN, TUNED}
    return {name: median(pair.runs[name].rate for pair in pairs if name in pair.runs) for name in names}
