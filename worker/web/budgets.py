"""Memory budgets for all connections together: received bytes of requests, and bytes that wait to be sent.

A limit for each connection does not bound two thousand of them. Where a budget is spent, the connections that hold it
for longest are dropped: requests that do not end, and clients that do not read.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

MAX_RECEIVED: Final = 24 << 20
"""Bytes of requests that are not answered; pictures have up to 16 MiB of it."""
MAX_UNSENT: Final = 16 << 20
"""Bytes of answers that clients have not read."""


class Held(Protocol):
    """A connection and what it holds."""

    @property
    def received(self) -> int:
        """Bytes received of a request that is not answered, and of those behind it."""

    @property
    def waits_since(self) -> float | None:
        """Time since which a whole request is awaited; None where none is awaited."""

    @property
    def unread_since(self) -> float | None:
        """Time since which the client does not read; None while it reads."""

    @property
    def unsent(self) -> int:
        """Bytes of answers that the client has not read."""

    def drop(self) -> None:
        """Close the connection at once."""


@dataclass(slots=True)
class Budget:
    """The budget of one process. Each packet updates a count; the connections are not summed up."""

    received: int = 0
    """Bytes of requests that are not answered."""
    unread: set[Held] = field(default_factory=set)
    """Connections whose clients do not read."""

    def receive(self, more: int) -> bool:
        """Note that a connection holds `more` bytes in addition; return whether all together are too many."""
        self.received += more
        return more > 0 and self.received > MAX_RECEIVED

    def drop_received(self, connections: Iterable[Held]) -> None:
        """Drop connections until the rest fits: requests that do not end, the oldest first, then the largest."""
        holding = [one for one in connections if one.received]
        for one in sorted(holding, key=lambda one: (one.waits_since is None, one.waits_since or -one.received)):
            if self.received <= MAX_RECEIVED:
                return
            one.drop()

    def drop_unread(self) -> None:
        """Drop connections whose clients do not read, the longest first, until the rest fits."""
        unread = sorted(self.unread, key=_since)
        total = sum(one.unsent for one in unread)
        for one in unread:
            if total <= MAX_UNSENT:
                return
            total -= one.unsent
            one.drop()


def drop_one_for_another(connections: Iterable[Held], *, now: float, patience: float) -> bool:
    """Drop the connection that is missed least, to make room for a new one; False where each is being answered.

    First one that has not been read for `patience` seconds, then an idle one, then any that is not read.
    """
    found = [*connections]
    unread = [one for one in found if one.unread_since is not None]
    idle = [one for one in found if one.waits_since is not None]
    choices: list[tuple[list[Held], Callable[[Held], float]]] = [
        ([one for one in unread if now - _since(one) > patience], _since),
        (idle, lambda one: one.waits_since or 0.0), (unread, _since),
    ]  # fmt: skip
    for some, key in choices:
        if some:
            min(some, key=key).drop()
            return True
    return False


def _since(one: Held) -> float:
    return one.unread_since or 0.0
