"""What a leader decides, as functions of what it knows: who leaves, whether seats are offered, whether a group pays."""

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
    """Whether a leader waits no longer for others.

    Args:
        request: has the least and the most workers.
        led: what was read last.
        there: workers that can train now, the leader among them.
        settled: whether nobody with a seat prepares any more.
        refused: workers that may not sit down: they are idle, too.
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
    """Return what is offered to idle workers; empty: nothing.

    Args:
        request: has the least workers.
        seated: members that have a seat.
        closed: whether nobody else may join.
        began: whether the training has.
        remaining_s: for which it goes on.
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
    """Whether the leader trains on by itself after its process failed; `seated`: that had a seat.

    A process that was killed says nothing of the group: it is started again, with its seat.
    """
    return seated and least == 1 and isinstance(error, ChildFailed) and not isinstance(error, ChildKilled)


@dataclass(frozen=True, slots=True)
class Weighed:
    """What a measurement means for a group."""

    kept: bool
    """Whether the group goes on."""
    slow: tuple[str, ...]
    """Members that leave, as it is faster without them."""


def weigh(ranks: Sequence[str], least: int, measured: Measurement) -> Weighed:
    """Return who goes on, for a measurement of `ranks`: slow members leave where `least` workers stay, two at least."""
    staying = [name for name in ranks if name not in measured.slow]
    without_slow = bool(measured.slow) and len(staying) >= max(2, least)
    kept = without_slow or measured.pays or least > 1
    return Weighed(kept, measured.slow if without_slow or not kept else ())
