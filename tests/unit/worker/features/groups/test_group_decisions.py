"""What a leader decides, without Redis: who waits, who gives way, who leaves, whether a group pays."""

import pytest

from preflight.contract.plan import Plan
from preflight.contract.spec import DEFAULTS
from preflight.errors import ChildFailed, ChildKilled, Diverged, PreflightError
from worker.features.groups.decisions import MIN_REMAINING, goes_on_alone, has_gathered, leaving, offer, weigh
from worker.features.groups.group_events import Measurement
from worker.features.groups.messages import GroupRequest
from worker.features.groups.seats import Led

LONG = 1_000.0


def request(least: int, most: int) -> GroupRequest:
    return GroupRequest(
        leader="leader", spec=DEFAULTS, plan=Plan(threads=1, micro_batch=32), least=least, most=most,
        gather_seconds=10, normalization=(33.0, 78.0),
    )  # fmt: skip


def gathered(
    least: int, most: int, there: int, *, idle: int = 0, refused: int = 0, settled: bool = True, late: bool = False,
    older_is_short: bool = False,
) -> bool:  # fmt: skip
    led = Led(0, idle, older_is_short, ())
    return has_gathered(request(least, most), led, there=there, settled=settled, refused=refused, late=late)


def test_a_leader_waits_for_those_that_may_still_come() -> None:
    assert gathered(1, 3, 3, idle=5)  # nobody else has a seat
    assert not gathered(1, 3, 2, idle=1)
    assert gathered(1, 3, 2, idle=1, refused=1)  # the idle one may not sit down
    assert gathered(1, 3, 2)
    assert not gathered(1, 3, 2, settled=False)
    assert not gathered(2, 3, 1)
    assert gathered(2, 3, 1, late=True)


def test_of_two_short_groups_the_younger_gives_way() -> None:
    assert gathered(2, 2, 1, older_is_short=True)
    assert not gathered(2, 2, 1, idle=1, older_is_short=True)  # an idle worker may yet sit down here
    assert not gathered(2, 2, 1)  # the older one waits


@pytest.mark.parametrize(("seated", "began", "remaining_s", "offered"), [
    (0, False, LONG, "short"), (1, False, LONG, "open"), (0, True, MIN_REMAINING - 1, "short"),
    (1, True, MIN_REMAINING - 1, ""), (1, True, MIN_REMAINING + 1, "open"),
])  # fmt: skip
def test_seats_are_offered_while_joining_pays(seated: int, began: bool, remaining_s: float, offered: str) -> None:
    wanted = request(2, 3)
    assert offer(wanted, seated=seated, closed=False, began=began, remaining_s=remaining_s) == offered
    assert offer(wanted, seated=seated, closed=True, began=began, remaining_s=remaining_s) == ""


@pytest.mark.parametrize(("ranks", "least", "waiting", "left"), [
    ("abc", 1, 0, ""), ("abc", 1, 1, "c"), ("abc", 1, 5, "cb"), ("abc", 2, 5, "c"), ("abc", 3, 5, ""),
    ("a", 1, 5, ""), ("ab", 3, 1, ""),
])  # fmt: skip
def test_members_leave_for_jobs_that_wait(ranks: str, least: int, waiting: int, left: str) -> None:
    assert "".join(leaving(ranks, least, waiting)) == left


@pytest.mark.parametrize(("error", "least", "seated", "alone"), [
    (ChildFailed("no port"), 1, True, True), (ChildFailed("no port"), 2, True, False),
    (ChildFailed("no port"), 1, False, False), (ChildKilled("killed"), 1, True, False),
    (Diverged("not a number"), 1, True, False),
])  # fmt: skip
def test_a_leader_goes_on_alone_where_the_group_is_what_failed(
    error: PreflightError, least: int, seated: bool, alone: bool
) -> None:
    assert goes_on_alone(error, least, seated=seated) == alone


def measured(speedup: float, *slow: str) -> Measurement:
    return Measurement(alone_samples_per_s=100, group_samples_per_s=100 * speedup, speedup=speedup, slow=slow)


@pytest.mark.parametrize(("ranks", "least", "speedup", "slow", "kept", "left"), [
    ("ab", 1, 1.5, "", True, ""), ("ab", 1, 1.0, "", False, ""), ("ab", 2, 1.0, "", True, ""),
    ("abc", 1, 0.8, "c", True, "c"),  # two are left, and faster
    ("ab", 1, 0.5, "b", False, "b"),  # nobody is left, and the slow one is named
    ("abc", 3, 0.8, "c", True, ""),  # the job demands three
    ("ab", 1, 1.2, "b", True, ""),
])  # fmt: skip
def test_a_measurement_says_who_goes_on(
    ranks: str, least: int, speedup: float, slow: str, kept: bool, left: str
) -> None:
    found = weigh(ranks, least, measured(speedup, *slow))
    assert (found.kept, "".join(found.slow)) == (kept, left)
