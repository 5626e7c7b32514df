"""The members of a group as its leader sees them."""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from worker.features.groups.messages import MEMBER_STATE, BadMessage, MemberState, Replayed, Sealer, Versions
from worker.features.groups.seats import SeatTaken

SILENT_SECONDS: Final = 5.0
"""Seconds without a beat after which the seat of a member is free."""
REACH_SECONDS: Final = 15.0
"""Seconds in which a member whose training process connects has to be in the group."""
START_SECONDS: Final = 60.0
"""Seconds after its call in which that process has to begin to connect: a quarter of a core imports slowly."""
LOST_SECONDS: Final = 3.0
"""Seconds within which a member whose process has ended may still get a new call."""
MAX_RETURNS: Final = 3
"""Times that a member may sit down again after its process has ended: each return forms the group again."""
LATE_RETURNS: Final = 1
"""The same for a member that has not trained yet: on a busy host its process came after the others had met."""


@dataclass(slots=True, kw_only=True)
class Seated:
    """A member with a seat."""

    name: str
    reported: MemberState
    age_s: float = 0.0
    """Seconds since its beat."""
    called_at: float | None = None
    """Monotonic time of the call that it follows; None: it was not called."""
    connecting_since: float | None = None
    lost_since: float | None = None

    @property
    def is_available(self) -> bool:
        """Return whether it can train with the group."""
        return self.reported.state in ("ready", "starting", "training", "lost") and self.age_s < SILENT_SECONDS


@dataclass(slots=True)
class Roster:
    """The members that have a seat, and the workers that may not take one again."""

    sealer: Sealer
    versions: Versions
    """Versions of the leader's packages."""
    data: str
    """SHA-256 of the leader's data set."""
    members: dict[str, Seated] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    met: set[str] = field(default_factory=set)
    """Names of the workers that have trained in the group."""
    returns: Counter[str] = field(default_factory=Counter)

    def may_return(self, member: Seated) -> bool:
        """Whether a member that is let go may sit down again: its network was cut, or its process came too late."""
        most = MAX_RETURNS if member.name in self.met else LATE_RETURNS
        if member.reported.state != "lost" or self.returns[member.name] >= most:
            return False
        self.returns[member.name] += 1
        return True

    def update(self, seats: Iterable[SeatTaken]) -> dict[str, str]:
        """Update the members from the seats; returns the names whose message is invalid, and why."""
        bad: dict[str, str] = {}
        found: dict[str, Seated] = {}
        for seat in seats:
            try:
                reported = self.sealer.open(MEMBER_STATE, seat.sealed, seat.worker)
            except Replayed:  # somebody put it back: the member counts as silent, and takes its seat again
                if seat.worker in self.members:
                    found[seat.worker] = self.members[seat.worker]
                    found[seat.worker].age_s = 2 * SILENT_SECONDS
                continue
            except BadMessage as error:
                bad[seat.worker] = f"it sent {error}"
                continue
            member = self.members.get(seat.worker) or Seated(name=seat.worker, reported=reported)
            member.reported, member.age_s = reported, seat.age_s
            found[seat.worker] = member
        self.members = found
        return bad

    def available(self) -> Sequence[Seated]:
        """Return the members that can train with the group, in the order of their names."""
        return [self.members[name] for name in sorted(self.members) if self.members[name].is_available]

    def are_settled(self) -> bool:
        """Return whether no member is still preparing."""
        return all(member.reported.state != "preparing" for member in self.members.values())

    def objection(self, member: Seated, call: int, ranks: Sequence[str], leader: str) -> str | None:
        """Return why a member cannot take part; None where it can.

        `call` is the number of the newest call, `ranks` the names in the group, `leader` the leader's address and port.
        """
        reported, own = member.reported, self.versions
        if reported.versions != own:
            names = [name for name in ("preflight", "torch") if getattr(reported.versions, name) != getattr(own, name)]
            parts = [f"{name} {getattr(reported.versions, name)} instead of {getattr(own, name)}" for name in names]
            return f"it has {' and '.join(parts)}; deploy all workers of a queue alike"
        if reported.state == "failed":
            return reported.why
        if reported.data and reported.data != self.data:
            return "its data set has other content than the leader's; delete the one that is wrong"
        if reported.state == "lost" and reported.call == call and call:
            member.lost_since = member.lost_since or time.monotonic()
            if time.monotonic() - member.lost_since > LOST_SECONDS:
                return f"its training process has ended: {reported.why}"
        else:
            member.lost_since = None
        return None if member.name in ranks else self._lateness(member, call, leader)

    def _lateness(self, member: Seated, call: int, leader: str) -> str | None:
        """Return why a called member is too late for the group; None: it is in time."""
        reported, now = member.reported, time.monotonic()
        if member.called_at is None:
            return None
        if reported.state != "training" or reported.call != call:
            member.connecting_since = None
            late = now - member.called_at > START_SECONDS
            return f"its training process has not started within {START_SECONDS:g} s" if late else None
        member.connecting_since = member.connecting_since or now
        if now - member.connecting_since <= REACH_SECONDS:
            return None
        return (
            f"it at {reported.address} and the leader at {leader} have not connected within {REACH_SECONDS:g} s; "
            "open all ports between workers, or set PREFLIGHT_ADVERTISE_HOST"
        )
