"""A leader's orders, without Redis: who sits is a list, and orders are kept."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pytest
from pydantic import JsonValue
from redis import Redis
from support.worker.contexts import ListSink, context_of

from preflight.container.resources import detect
from preflight.contract.plan import Plan
from preflight.contract.spec import DEFAULTS
from preflight.errors import ChildFailed, GroupShort
from preflight.files.journal import Record
from preflight.wire import GroupMeasured
from preflight.wire import GroupShort as ShortEvent
from worker.broker.fencing import Fence
from worker.config.settings import Settings
from worker.features.groups import roster
from worker.features.groups.gathering import gather
from worker.features.groups.group_events import GroupEvents
from worker.features.groups.leader import Leader
from worker.features.groups.messages import (
    MEMBER_STATE,
    ORDER,
    Call,
    GroupRequest,
    Leave,
    MemberState,
    Sealer,
    Versions,
)
from worker.features.groups.roster import Roster
from worker.features.groups.seats import Instruction, LeaderSeats, Led, SeatTaken
from worker.state.control import RestartTraining

OWN = Versions(preflight="1.0", torch="2.15")
DATA = "0" * 64
SEALER = Sealer.of(Settings(), "j", 1)
READY = MemberState(address="10.0.0.2", versions=OWN, cores=1, memory_mb=1024, state="ready", data=DATA)


@dataclass
class ListedSeats(LeaderSeats):
    """Seats of whoever is listed; keeps what was offered and ordered."""

    members: dict[str, MemberState] = field(default_factory=dict)
    jobs: int = 0
    """That wait in the queue."""
    idle: int = 0
    older_is_short: bool = False
    offers: list[str] = field(default_factory=list)
    given: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        connection = Redis()  # connects to nothing
        super().__init__(connection, "q", Fence(connection, "j", "w/1", ttl=60, request=""), ttl=60)

    def lead(
        self, seats: int, request: str, offer: Literal["open", "short", ""], instructions: Sequence[Instruction]  # noqa: ARG002 - the interface
    ) -> Led:  # fmt: skip
        self.offers.append(offer)
        self.given += instructions
        for one in instructions:
            if one.verdict != "stays":
                self.members.pop(one.worker, None)
        taken = [
            SeatTaken(name, 0.1, SEALER.seal(MEMBER_STATE, reported, name)) for name, reported in self.members.items()
        ]
        return Led(self.jobs, self.idle, self.older_is_short, taken)

    def disband(self) -> None:
        self.members.clear()

    def orders(self, worker: str) -> list[Call | Leave]:
        return [SEALER.open(ORDER, one.order, worker) for one in self.given if one.worker == worker]


@dataclass
class Stage:
    leader: Leader
    seats: ListedSeats
    sink: ListSink

    def tell(self, kind: str, **payload: JsonValue) -> None:
        """Have the training process write a record."""
        self.leader.on_record(Record(1, kind, time.time(), payload))

    def form(self) -> None:
        """Begin to train with everybody who sits."""
        gather(self.leader, 0.0)
        assert self.leader.seat() is not None
        self.tell("listening", port=4000)
        self.tell("group", members=["w", *self.seats.members])


def staged(directory: Path, least: int, most: int, *members: str) -> Stage:
    seats, sink = ListedSeats(dict.fromkeys(members, READY)), ListSink()
    context = context_of(directory, sink)
    request = GroupRequest(
        leader="w", spec=DEFAULTS, plan=Plan(threads=1, micro_batch=32), least=least, most=most, gather_seconds=10,
        normalization=(33.0, 78.0),
    )  # fmt: skip
    leader = Leader(
        context=context, seats=seats, request=request, address="10.0.0.1", resources=detect(), sealer=SEALER,
        roster=Roster(SEALER, OWN, DATA), events=GroupEvents(context=context, leader="w", resources=detect()),
    )  # fmt: skip
    return Stage(leader, seats, sink)


def test_the_first_round_waits_for_all_that_sit(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1, 4, "a", "b")
    gather(stage.leader, 0.0)
    seat = stage.leader.seat()
    assert seat is not None
    assert (seat.awaited, seat.least, seat.most) == (3, 1, 4)
    stage.tell("listening", port=4000)
    for member in "ab":
        (call,) = stage.seats.orders(member)
        assert isinstance(call, Call)
        assert (call.host, call.port, call.awaited) == ("10.0.0.1", 4000, 3)


def test_seats_beyond_the_most_are_not_awaited(tmp_path: Path) -> None:
    """A seat that Redis lost may be taken again by two."""
    stage = staged(tmp_path, 1, 2, "a", "b", "c")
    gather(stage.leader, 0.0)
    seat = stage.leader.seat()
    assert seat is not None
    assert seat.awaited == 2


@pytest.mark.parametrize("older_is_short", [False, True])
def test_a_short_job_goes_back(tmp_path: Path, older_is_short: bool) -> None:
    """After its time, or at once where an older group is short, too."""
    stage = staged(tmp_path, 3, 3, "a")
    stage.seats.older_is_short = older_is_short
    with pytest.raises(GroupShort, match="2 of 3 workers are there"):
        gather(stage.leader, 3600 if older_is_short else 0.0)
    (event,) = stage.sink.events
    assert isinstance(event, ShortEvent)
    assert (event.workers, event.wanted) == (2, 3)
    assert set(stage.seats.offers) == {"short"}


def test_one_that_differs_is_named_and_refused(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1, 3, "a", "b")
    stage.seats.members["b"] = replace(READY, versions=replace(OWN, torch="2.14"))
    gather(stage.leader, 0.0)
    stage.leader.lead()
    (warning,) = stage.sink.only_warnings
    assert "worker b does not train with the group: it has torch 2.14 instead of 2.15" in warning
    assert [(one.worker, one.verdict) for one in stage.seats.given] == [("b", "refused")]
    assert [*stage.seats.members] == ["a"]


def test_members_leave_for_jobs_that_wait(tmp_path: Path) -> None:
    """At a checkpoint, the last rank first; nobody joins then."""
    stage = staged(tmp_path, 2, 4, "a", "b")
    stage.form()
    stage.seats.jobs = 5
    stage.seats.members["c"] = READY
    stage.leader.lead()
    stage.tell("checkpoint")
    assert [(one.worker, one.verdict) for one in stage.seats.given if one.verdict != "stays"] == [("b", "leaves")]
    assert stage.seats.orders("c") == []


def test_a_newcomer_is_called_at_a_checkpoint(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1, 4, "a")
    stage.form()
    stage.seats.members["b"] = READY
    stage.leader.lead()
    assert stage.seats.orders("b") == []
    stage.tell("checkpoint")
    stage.leader.lead()
    (call,) = stage.seats.orders("b")
    assert isinstance(call, Call)
    assert call.awaited == 3


def test_a_group_that_does_not_pay_is_let_go(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1, 2, "a")
    stage.form()
    with pytest.raises(RestartTraining):
        stage.tell(
            "group_measured", alone_samples_per_s=100.0, group_samples_per_s=50.0, speedup=0.5,
            speeds={"w": 100.0, "a": 25.0}, slow=["a"],
        )  # fmt: skip
    warning = stage.sink.warnings[0]
    assert "worker a does not train with the group: it is too slow for the others: 25 samples/s alone" in warning
    (measured,) = (event for event in stage.sink.events if isinstance(event, GroupMeasured))
    assert not measured.kept
    assert measured.message.endswith("0.50 times as fast as w alone; less than 1.15, so w continues alone")
    assert stage.seats.members == {}
    assert stage.seats.offers[-1] == ""
    assert stage.leader.seat() is None


def test_a_leader_goes_on_alone_after_its_group_has_failed(tmp_path: Path) -> None:
    stage = staged(tmp_path, 1, 2, "a")
    stage.form()
    assert stage.leader.survives(ChildFailed("its address cannot be bound"))
    assert "its address cannot be bound; this worker continues alone" in stage.sink.warnings[-1]
    assert stage.seats.members == {}
    assert stage.leader.seat() is None
    assert not stage.leader.survives(ChildFailed("again"))  # this is no matter of a group any more


@pytest.mark.parametrize(("met", "returns"), [(False, roster.LATE_RETURNS), (True, roster.MAX_RETURNS)])
def test_one_whose_process_has_ended_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, met: bool, returns: int
) -> None:
    """A few times where it had trained along, as its network was cut; once where it had not: it may have been late."""
    stage = staged(tmp_path, 1, 2, "a")
    stage.form()
    if not met:
        stage.leader.roster.met.clear()
    monkeypatch.setattr(roster, "LOST_SECONDS", -1.0)
    verdicts = []
    for _ in range(returns + 1):
        stage.seats.members["a"] = replace(READY, state="lost", call=1, why="the network is cut")
        stage.leader.lead()
        stage.leader.lead()
        verdicts.append(stage.seats.given[-1].verdict)
        assert "the network is cut" in stage.sink.warnings[-1]
    assert verdicts == ["leaves"] * returns + ["refused"]
