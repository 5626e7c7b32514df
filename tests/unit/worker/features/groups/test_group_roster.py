"""Whom a leader takes, and whom it names and lets go."""

from dataclasses import replace

import pytest

from worker.config.settings import Settings
from worker.features.groups import roster
from worker.features.groups.messages import MEMBER_STATE, MemberState, Sealer, Versions
from worker.features.groups.roster import Roster, Seated
from worker.features.groups.seats import SeatTaken

OWN = Versions(preflight="1.0", torch="2.15")
DATA = "0" * 64
READY = MemberState(address="10.0.0.2", versions=OWN, cores=1, memory_mb=1024, state="ready", data=DATA)
SEALER = Sealer.of(Settings(), "job", 1)


def objection(
    reported: MemberState, *, call: int = 1, ranks: tuple[str, ...] = (), called_at: float | None = None,
    connecting_since: float | None = None,
) -> str | None:  # fmt: skip
    seated = Seated(name="worker", reported=reported, called_at=called_at, connecting_since=connecting_since)
    return Roster(SEALER, OWN, DATA).objection(seated, call, ranks, "10.0.0.1 port 4000")


def test_a_member_that_is_alike_may_stay() -> None:
    assert objection(READY) is None
    assert objection(replace(READY, state="preparing", data="")) is None


@pytest.mark.parametrize(("reported", "words"), [
    (replace(READY, versions=replace(OWN, torch="2.14")), "torch 2.14 instead of 2.15"),
    (replace(READY, versions=Versions(preflight="0.9", torch="2.14")), "preflight 0.9 instead of 1.0 and torch 2.14"),
    (replace(READY, data="1" * 64), "other content"),
    (replace(READY, state="failed", why="no such data set"), "no such data set"),
])  # fmt: skip
def test_one_that_differs_is_let_go(reported: MemberState, words: str) -> None:
    assert words in (objection(reported) or "")


def test_one_that_cannot_be_reached_is_named_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    connecting = replace(READY, state="training", call=1)
    late = 100.0 - roster.REACH_SECONDS - 1
    why = objection(connecting, called_at=late, connecting_since=late) or ""
    assert "10.0.0.2" in why
    assert "10.0.0.1 port 4000" in why
    assert objection(connecting, called_at=late, connecting_since=late, ranks=("leader", "worker")) is None
    assert objection(connecting, called_at=late, connecting_since=90.0) is None
    assert objection(connecting, called_at=late) is None


def test_one_that_starts_slowly_has_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    starting, late = replace(READY, state="starting", call=1), 100.0 - roster.REACH_SECONDS - 1
    assert objection(starting, called_at=late) is None
    too_late = 100.0 - roster.START_SECONDS - 1
    assert "has not started within 60 s" in (objection(starting, called_at=too_late) or "")
    assert "has not started within 60 s" in (objection(READY, called_at=too_late) or "")  # it takes no orders
    assert objection(starting, called_at=too_late, ranks=("leader", "worker")) is None


def test_one_whose_process_has_ended_may_still_follow_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lost = Seated(name="worker", reported=replace(READY, state="lost", call=1, why="it was killed"))
    held = Roster(SEALER, OWN, DATA)
    assert held.objection(lost, 2, (), "") is None
    assert held.objection(lost, 1, (), "") is None
    now += roster.LOST_SECONDS + 1
    assert "it was killed" in (held.objection(lost, 1, (), "") or "")


def test_who_is_silent_or_not_ready_is_not_available() -> None:
    held = Roster(SEALER, OWN, DATA)
    seats = [
        SeatTaken("a", 0.5, SEALER.seal(MEMBER_STATE, READY, "a")),
        SeatTaken("b", 0.5, SEALER.seal(MEMBER_STATE, replace(READY, state="preparing"), "b")),
        SeatTaken("c", roster.SILENT_SECONDS + 1, SEALER.seal(MEMBER_STATE, READY, "c")),
        SeatTaken("d", 0.5, "- {}"),
    ]
    assert list(held.update(seats)) == ["d"]
    assert [member.name for member in held.available()] == ["a"]
    assert not held.are_settled()
    assert held.update(seats[:1]) == {}
    assert held.are_settled()
    assert list(held.members) == ["a"]
