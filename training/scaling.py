"""Speed of a training by its threads, as a calibration measured it: what a share of the processors is worth to it."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

Speeds = tuple[tuple[int, float], ...]
"""Threads -> steps a second, the fewest threads first; empty where nothing was measured."""

UNMEASURED: Final = 0.7
"""Exponent of the speed by threads while none is known: twice the threads are 1.62 times as fast."""


def speed(speeds: Speeds, threads: float) -> float:
    """Return the steps a second on so many threads, in a unit of its own where nothing was measured.

    Between two measurements the logarithm of the speed is linear in that of the threads. Below the fewest it falls
    with the threads, above the most it stays: both are the least that can be expected.
    """
    if not speeds:
        return math.pow(threads, UNMEASURED)
    (fewest, slowest), (most, fastest) = speeds[0], speeds[-1]
    if threads <= fewest:
        return slowest * threads / fewest
    if threads >= most:
        return fastest
    for (fewer, slow), (more, fast) in pairwise(speeds):
        if threads <= more:
            part = math.log(threads / fewer) / math.log(more / fewer)
            return slow * math.pow(fast / slow, part)
    raise AssertionError(f"{speeds} is not in order")


def slowdown(speeds: Speeds, before: float, after: float) -> float:
    """Return how many times as long a step takes on `after` threads as on `before`."""
    return speed(speeds, before) / speed(speeds, after)


def ordered(measured: Sequence[tuple[int, float]]) -> Speeds:
    """Return measurements as speeds: more threads are never slower, as fewer of them can be used."""
    found: list[tuple[int, float]] = []
    for threads, steps in sorted(measured):
        found.append((threads, max(steps, found[-1][1] if found else 0.0)))
    return tuple(found)
