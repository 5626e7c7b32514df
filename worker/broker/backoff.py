"""Exponential backoff with jitter."""

import random
from collections.abc import Iterator


def backoff(first: float, longest: float) -> Iterator[float]:
    """Yield pauses in seconds: 50 to 100 % of `first`, then of twice as much each time, up to `longest`."""
    bound = first
    while True:
        yield random.uniform(bound / 2, bound)  # noqa: S311 - it only has to differ from that of other processes
        bound = min(2 * bound, longest)
