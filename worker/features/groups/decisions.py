"""Decisions of a leader as functions of what it knows: who leaves, whether to offer seats, whether a group pays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from preflight.errors import ChildFailed, ChildKilled, PreflightError
from worker.features.groups.group_events import Measurement
from worker.features.groups.messages import GroupRequest
from worker.features.groups.seats import Led

MIN_REMAINING: Final = 15.0
"""Seconds of training left below which nobody joins: connecting and measuring takes some five of them."""


def has_gathered(request: GroupRequest, led: Led, *, there: int, settled: bool, refused: int, late: bool) -> bool:
    """Return whether a leader stops waiting for other workers.

    Args:
        request: has the least and the most workers of the group.
        led: what the leader last read from Redis.
        there: workers that can train now, the leader among them.
        settled: whether no member with a seat is still preparing.
        refused: number of workers that may not sit down; `led.idle` counts them, too.
        late: whether the time to gather is over.
    """
    more_may_come = led.idle > refused
    enough = there >= request.least and settled
    if late or (enough and (there == request.most or not more_may_come)):
        return True
    # Two short groups would wait for each other: the younger one gives way, and its worker sits down at the older.
    return there < request.least and led.older_is_short and not more_may_come


def offer(
    request: GroupRequest, *, seated: int, closed: bool, began: bool, remaining_s: float
) -> Literal["open", "short", ""]:
    """Return the kind of seats that idle workers are offered; empty: none.

    Args:
        request: has the least workers of the group.
        seated: number of members that have a seat.
        closed: whether nobody else may join.
        began: whether the training has begun.
        remaining_s: seconds of training that remain.
    """
    if closed:
        return ""
    if seated + 1 < request.least:
        return "short"
    return "" if began and remaining_s < MIN_REMAINING else "open"


def leaving(ranks: Sequence[str], least: int, waiting: int) -> Sequence[str]:
    """Return the members that leave for `waiting` jobs, the last ranks first; `least` workers stay, and the leader."""
    return ranks[1:][::-1][: max(0, min(waiting, len(ranks) - least))]


def goes_on_alone(error: PreflightError, least: int, *, seated: bool) -> bool:
    """Return whether the leader continues alone after its process failed; `seated`: whether the process had a seat.

    A process that was killed says nothing about the group: it is started again, with its seat.
    """
    return seated and least == 1 and isinstance(error, ChildFailed) and not isinstance(error, ChildKilled)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Outcome of a measurement for a group."""

    kept: bool
    """Whether the group continues."""
    slow: tuple[str, ...]
    """Members that leave, as the group is faster without them."""


def weigh(ranks: Sequence[str], least: int, measured: Measurement) -> Weighed:
    """Return what a measurement means for `ranks`: slow members leave if at least `least` workers, and two, remain."""
    staying = [name for name in ranks if name not in measured.slow]
    without_slow = bool(measured.slow) and len(staying) >= max(2, least)
    kept = without_slow or measured.pays or least > 1
    return Weighed(kept, measured.slow if without_slow or not kept else ())
