"""Division of processors among trainings: what each gets, and whether another one pays.

The speed of a training is relative to that of the same training alone on all processors, so that the sum over all is
the speed of all together relative to one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from training.prediction import Speeds, speed

LEAST_GAIN: Final = 0.07
"""Share of what one training does on average that another one must bring: all share caches and memory, which the speeds
of one do not show."""
LEAST_ALONE: Final = 1 / 1.1
"""Share of its speed alone that `latency` leaves to a training that runs: its end comes a tenth later at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Processors that one training can use, and its speed on them."""

    most: int
    """Threads that its plan has; more are of no use to it."""
    speeds: Speeds = ()
    is_fixed: bool = False
    """Whether it keeps `most` threads: it is deterministic, compiled, or a seat in a group."""
    least_share: float = 0.0
    """Share of its speed alone below which it is not to fall."""

    def relative_speed(self, processors: int) -> float:
        """Return the speed on so many processors, 1 where it has all that it can use."""
        threads = min(processors, self.most)
        return speed(self.speeds, threads) / speed(self.speeds, self.most)


@dataclass(frozen=True, slots=True)
class Division:
    """Processors of each training, and the speed of all together."""

    processors: tuple[int, ...]
    together: float
    """Speed of all together, relative to one after the other."""


@cache
def divide(claims: tuple[Claim, ...], processors: int) -> Division | None:
    """Return the division that does most; None where a fixed or a least share cannot be had.

    Every training gets one processor at least. `claims` and the result are in the same order.
    """
    if not claims:
        return Division((), 0.0)
    best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ())] + [None] * processors
    for claim in claims:
        after: list[tuple[float, tuple[int, ...]] | None] = [None] * (processors + 1)
        for count in _counts(claim, processors):
            gained = claim.relative_speed(count)
            for used in range(processors - count + 1):
                before = best[used]
                if before is None:
                    continue
                found = before[0] + gained, (*before[1], count)
                present = after[used + count]
                if present is None or found[0] > present[0] + 1e-9:
                    after[used + count] = found
        best = after
    # Among divisions that do the same, take the one that leaves most processors idle.
    usable = [each for each in best if each is not None]
    if not usable:
        return None
    together, counts = max(usable, key=lambda each: round(each[0], 6))
    return Division(counts, together)


def divide_anyhow(claims: tuple[Claim, ...], processors: int) -> Division:
    """Return the division of trainings that run already: with more of them than processors, one for each."""
    found = divide(claims, processors)
    if found is not None:
        return found
    fixed = sum(claim.most for claim in claims if claim.is_fixed)
    free = [replace(claim, least_share=0.0) for claim in claims if not claim.is_fixed]
    rest = divide(tuple(free), max(0, processors - fixed))
    shares = iter(rest.processors if rest is not None else [1] * len(free))
    counts = tuple(claim.most if claim.is_fixed else next(shares) for claim in claims)
    return Division(counts, sum(claim.relative_speed(count) for claim, count in zip(claims, counts, strict=True)))


def joining(running: Sequence[Claim], next_one: Claim, processors: int, *, is_latency: bool) -> Division | None:
    """Return the division once `next_one` has joined; None where it does not pay, or slows another one too much."""
    if is_latency:
        running = [replace(claim, least_share=LEAST_ALONE) for claim in running]
    after = divide((*running, next_one), processors)
    if after is None:
        return None
    before = divide_anyhow(tuple(replace(claim, least_share=0.0) for claim in running), processors)
    return after if after.together >= (1 + LEAST_GAIN / len(running)) * before.together else None


def _counts(claim: Claim, processors: int) -> Sequence[int]:
    """Return the numbers of processors that a training may get."""
    if claim.is_fixed:
        return [claim.most] if claim.most <= processors else []
    counts = range(1, min(claim.most, processors) + 1)
    return [count for count in counts if claim.relative_speed(count) >= claim.least_share - 1e-9]
