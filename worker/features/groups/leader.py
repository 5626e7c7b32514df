"""The leader of a group: offers seats, calls members, and decides who stays."""

import time
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import JsonValue
from redis.exceptions import RedisError

from preflight.container.resources import Resources
from preflight.errors import GroupShort, PreflightError
from preflight.files.journal import Record
from preflight.redis.retry import REDIS
from training.group import Seat, Wire
from worker.features.groups.decisions import MIN_REMAINING, goes_on_alone, leaving, offer, weigh
from worker.features.groups.group_events import GroupEvents
from worker.features.groups.messages import ORDER, REQUEST, Call, GroupRequest, Leave, Sealer, new_nonce
from worker.features.groups.roster import SILENT_SECONDS, Roster, Seated
from worker.features.groups.seats import Instruction, LeaderSeats, Led, Verdict
from worker.jobs.context import JobContext
from worker.jobs.stages.group import Group
from worker.state.control import RestartTraining

LEAD_INTERVAL: Final = 1.0
"""Seconds between two commands of a leader to Redis."""
GATHER_INTERVAL: Final = 0.25
"""Seconds between two such commands while members are awaited."""


@dataclass(slots=True, kw_only=True)
class Leader(Group):
    """The group that this attempt leads."""

    context: JobContext
    seats: LeaderSeats
    request: GroupRequest
    address: str
    resources: Resources
    roster: Roster
    sealer: Sealer
    events: GroupEvents
    ranks: tuple[str, ...] = field(init=False)
    """Names of the workers that train now, by rank; at first the leader alone."""
    led: Led = field(default_factory=lambda: Led(0, 0, False, ()))
    """What the leader last read from Redis."""
    _call: Call | None = None
    """Call of the training process that runs; None: the process does not listen yet, or trains alone."""
    _number: int = 0
    _awaited: int = 1
    """Ranks that the first round of the process waits for."""
    _nonce: str = ""
    _seated: bool = False
    """Whether the process that runs has a seat."""
    _closed: bool = False
    """Whether nobody else may join."""
    _measured: bool = False
    _wire: Wire | None = None
    _remaining_s: float = float("inf")
    _next: float = 0.0
    _instructions: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ranks = (self.request.leader,)

    # --- interface of the training stage

    @property
    def workers(self) -> int | None:
        """Workers that train the job now."""
        return len(self.ranks)

    def seat(self) -> Seat | None:
        """Return the seat of the next training process; None: it trains alone, as no member is there or may join."""
        request, others = self.request, self.roster.available()
        self._call, self._seated = None, False
        for member in self.roster.members.values():
            member.called_at = member.connecting_since = None
        if self._closed or (not others and request.least == 1):
            self._show((request.leader,))
            return None
        self._number += 1
        self._nonce, self._seated = new_nonce(), True
        self._awaited = min(request.most, len(others) + 1)
        return Seat(
            name=request.leader, leader=True, address=self.address, secret=self.sealer.secret(self._nonce),
            least=request.least, most=request.most, gather_seconds=request.gather_seconds, measure=self._measures,
            wire=self._fixed_wire, awaited=self._awaited,
        )  # fmt: skip

    def check(self) -> None:
        """Lead the group if it is time; raises `Superseded`."""
        if time.monotonic() >= self._next:
            self.lead()

    def on_record(self, record: Record) -> None:
        """Handle a record of the training process; raises `RestartTraining`."""
        match record.kind, record.payload:
            case "listening", {"port": int(port)}:
                self._begin_call(port)
            case "group", {"members": list(members)}:
                self._show(tuple(map(str, members)))
            case "group_measured", payload:
                self._weigh(payload)
            case "progress", {"eta_s": float(seconds)}:
                self._remaining_s = seconds
            case "checkpoint", _:
                self._change()

    def survives(self, error: PreflightError) -> bool:
        """Return whether the leader continues alone after the group's process failed; raises `GroupShort`."""
        if isinstance(error, GroupShort):
            self.give_up(f"{error.message}")
        if not goes_on_alone(error, self.request.least, seated=self._seated):
            return False
        self.context.warn(f"the group has failed: {error.message}; this worker continues alone")
        self._dismiss_all("the group has failed")
        return True

    def close(self) -> None:
        """End the group; while Redis is away, the members notice the end by themselves."""
        try:
            self.seats.disband()
        except RedisError as error:
            REDIS.note_failure(error, "end the group")

    def give_up(self, why: str) -> None:
        """Report that workers are missing, so that the job goes back to its queue; raises `GroupShort`."""
        there, wanted = len(self.roster.available()) + 1, self.request.least
        message = f"{there} of {wanted} workers are there ({why}); the job is at the end of its queue"
        self.context.emit("group_short", {"workers": there, "wanted": wanted, "message": message})
        raise GroupShort(message)

    # --- leading

    def lead(self) -> None:
        """Give orders to the members, and read the seats; raises `Superseded`."""
        awaits = any(member.called_at and member.name not in self.ranks for member in self.roster.members.values())
        self._next = time.monotonic() + (LEAD_INTERVAL if self._number and not awaits else GATHER_INTERVAL)
        instructions, self._instructions = self._instructions, []
        sealed = self.sealer.seal(REQUEST, self.request, "leader")
        offered = offer(
            self.request, seated=len(self.roster.members), closed=self._closed, began=self._number > 0,
            remaining_s=self._remaining_s,
        )  # fmt: skip
        try:
            self.led = self.seats.lead(self.request.most - 1, sealed, offered, instructions)
            REDIS.note_answer()
        except RedisError as error:
            self._instructions = instructions + self._instructions
            REDIS.note_failure(error, "lead the group")
            return
        for name, why in self.roster.update(self.led.seats).items():
            self._refuse(name, why)
        for member in [*self.roster.members.values()]:
            self._judge(member)
        if self._call is not None and self._alive() < self.request.least:
            self._call_newcomers()  # the ranks wait for them

    def _judge(self, member: Seated) -> None:
        where = f"{self.address} port {self._call.port}" if self._call else self.address
        why = self.roster.objection(member, self._number, self.ranks, where)
        if why is not None and self.roster.may_return(member):
            self.context.warn(f"worker {member.name} is let go: {why}")
            self._dismiss(member.name, why, "leaves")
        elif why is not None:
            self._refuse(member.name, why)
        elif member.age_s > SILENT_SECONDS:  # it is dead, or takes its seat again
            self._dismiss(member.name, "it was silent", "forgotten")

    def _refuse(self, name: str, why: str) -> None:
        """Dismiss a member for the whole attempt, with a warning that says why."""
        self.context.warn(f"worker {name} does not train with the group: {why}")
        self.roster.refused.add(name)
        self._dismiss(name, why, "refused")

    def _dismiss(self, name: str, why: str, verdict: Verdict) -> None:
        order = self.sealer.seal(ORDER, Leave(why=why[:1_000]), name)
        self._instructions.append(Instruction(name, order, verdict))
        self.roster.members.pop(name, None)
        self._next = 0.0

    def _dismiss_all(self, why: str) -> None:
        self._closed = True
        for name in [*self.roster.members]:
            self._dismiss(name, why, "refused")
        self.lead()

    # --- calls

    @property
    def _measures(self) -> bool:
        return not (self._measured or self.request.spec.deterministic)

    @property
    def _fixed_wire(self) -> Wire | None:
        return "float32" if self.request.spec.deterministic else self._wire

    def _begin_call(self, port: int) -> None:
        self._call = Call(
            number=self._number, host=self.address, port=port, nonce=self._nonce, measure=self._measures,
            wire=self._fixed_wire, awaited=self._awaited,
        )  # fmt: skip
        for member in self.roster.available():
            self._send_call(member, self._awaited)
        self.lead()

    def _send_call(self, member: Seated, awaited: int) -> None:
        if self._call is not None:
            order = self.sealer.seal(ORDER, replace(self._call, awaited=awaited), member.name)
            self._instructions.append(Instruction(member.name, order, "stays"))
            member.called_at, self._next = time.monotonic(), 0.0

    def _change(self) -> None:
        """Let members leave for jobs that wait, or newcomers join; called after each checkpoint."""
        leavers = leaving(self.ranks, self.request.least, self.led.waiting)
        for name in leavers:
            self._dismiss(name, "jobs wait in the queue", "leaves")
        if leavers:
            self.lead()
            return
        if self._closed or self._remaining_s < MIN_REMAINING or self.led.waiting:
            return
        if not self._seated and self._newcomers():
            raise RestartTraining
        self._call_newcomers()

    def _newcomers(self) -> list[Seated]:
        return [one for one in self.roster.available() if one.name not in self.ranks and one.called_at is None]

    def _call_newcomers(self) -> None:
        newcomers = self._newcomers()
        for member in newcomers:
            self._send_call(member, min(self.request.most, len(self.ranks) + len(newcomers)))

    def _alive(self) -> int:
        """Return how many of the ranks are available, the leader among them."""
        return 1 + sum(one.name in self.ranks and one.is_available for one in self.roster.members.values())

    # --- ranks and measurement

    def _show(self, ranks: tuple[str, ...]) -> None:
        before, self.ranks = self.ranks, ranks
        self.roster.met.update(ranks)
        self.events.show(before, ranks, {name: one.reported for name, one in self.roster.members.items()})

    def _weigh(self, payload: dict[str, JsonValue]) -> None:
        """Decide by a measurement whether the group continues, and with whom; raises `RestartTraining`."""
        measured = self.events.read_measurement(payload)
        self._measured, self._wire = True, measured.wire
        found = weigh(self.ranks, self.request.least, measured)
        self.events.show_measurement(self.ranks, measured, kept=found.kept, demanded=self.request.least)
        for name in found.slow:
            self._refuse(name, f"it is too slow for the others: {measured.speed_of(name)}")
        if not found.kept:
            self._dismiss_all("training together is not faster")
            raise RestartTraining
        if found.slow:
            self.lead()
