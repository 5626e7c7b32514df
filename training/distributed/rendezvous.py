"""Rendezvous of a group: PyTorch's dynamic one over the leader's store, which listens on the leader's address alone."""

import mmap
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousInfo
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousSettings,
    RendezvousTimeout,
    _Action,
    _BackendRendezvousStateHolder,
    _DistributedRendezvousOpExecutor,
    _RendezvousContext,
)

from training.group import Seat

STORE_TIMEOUT: Final = timedelta(seconds=5)
"""Longest wait for an answer of the leader's store."""
FIRST_CALL: Final = timedelta(seconds=5)
"""Longest wait for the awaited ranks of a first round."""
LAST_CALL: Final = timedelta(seconds=2)
"""The same for a later round."""
HEARTBEAT: Final = timedelta(seconds=1)
MISSED_HEARTBEATS: Final = 4
"""Missed heartbeats after which a member has vanished."""
POLL_SECONDS: Final = 0.1
"""Seconds between two looks at a round that forms."""
PAST: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rank's place in the round that has formed."""

    rank: int
    """Number that the rendezvous gave it; the leader's may be any."""
    ranks: int
    round: int
    began: float
    """Time at which the round began to form, by the monotonic clock."""
    restarts: int
    """Rounds before it in which this process took part."""


def serve_store(address: str) -> TCPStore:
    """Start the store on a free port of `address`, in this process; raises `OSError` where that cannot be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family)
    port = int(listener.getsockname()[1])
    return TCPStore(
        address, port, is_master=True, timeout=STORE_TIMEOUT, wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )  # fmt: skip


def connect_store(endpoint: tuple[str, int]) -> TCPStore:
    """Connect to the leader's store.

    Raises:
        RuntimeError: it cannot be reached.
    """
    return TCPStore(*endpoint, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False)


class EarlyCloseState(_BackendRendezvousStateHolder):
    """The state of the rendezvous, whose last call ends early when all awaited ranks have come.

    It extends a private class of torch: by the public ones each round waits for the whole last call (2 s).
    """

    awaited = 1

    def sync(self) -> bool | None:
        """Read or write the state, as the base class does."""
        written: bool | None = super().sync()
        state = self._state
        if state.deadline is not None and not state.complete and len(state.participants) >= self.awaited:
            state.deadline = PAST
        return written


class PollingExecutor(_DistributedRendezvousOpExecutor):
    """Executes the actions of a node; looks again after `POLL_SECONDS`, where the base class waits for a second.

    It extends a private class of torch: with the public ones each round begins up to a second later.
    """

    def run(
        self,
        state_handler: Callable[[_RendezvousContext, float], _Action],
        deadline: float,
        update_deadline: Callable[[timedelta], float] | None = None,
    ) -> None:
        """Act until there is nothing more to do."""

        def await_action(context: _RendezvousContext, until: float) -> _Action:
            while (action := state_handler(context, until)) == _Action.SYNC:
                time.sleep(POLL_SECONDS)
                self._state_holder.sync()
                self._state = self._state_holder.state
                context = _RendezvousContext(self._node, self._state, self._settings)
            return action

        super().run(await_action, deadline, update_deadline)


class Rendezvous(DynamicRendezvousHandler):
    """A rendezvous that needs no second store, waits for no one who is not awaited, and sees that a member vanished."""

    def __init__(self, seat: Seat, store: TCPStore) -> None:
        """Take `seat`; its `least` ranks are waited for `gather_seconds`, each time ranks form."""
        self._timeout = RendezvousTimeout(join=timedelta(seconds=seat.gather_seconds), last_call=FIRST_CALL)
        settings = RendezvousSettings(
            seat.secret, seat.least, seat.most, self._timeout,
            keep_alive_interval=HEARTBEAT, keep_alive_max_attempt=MISSED_HEARTBEATS,
        )  # fmt: skip
        backend = C10dRendezvousBackend(store, seat.secret)
        self._state_of_round = EarlyCloseState(backend, settings, cache_duration=0)
        self._state_of_round.awaited = seat.awaited
        node = self._node_desc_generator.generate(seat.address)
        super().__init__(node, settings, backend.name, store, self._state_of_round)
        self._op_executor = PollingExecutor(node, self._state_of_round, settings)
        self._server = store
        self._over = memoryview(mmap.mmap(-1, 1))
        self._began = 0.0
        self._rounds = self._ranks = 0
        self.vanished = False
        """Whether a member was missing when the agent looked last."""

    def next_rendezvous(self) -> RendezvousInfo:
        """Form a round; raises `RendezvousTimeoutError` where too few join."""
        self._began = time.monotonic()
        self._bootstrap_store_info = None  # torch would keep the first round's, of a node that may have gone
        formed = super().next_rendezvous()
        self._rounds += 1
        self._ranks = self._state_of_round.awaited = formed.world_size
        self._timeout._set_timeouts(last_call=LAST_CALL)
        return formed

    def _create_tcp_store_server(self, master_addr: str, master_port: int) -> TCPStore:  # noqa: ARG002
        """Return the store that exists already: torch's own one would listen on every address."""
        return self._server

    def num_nodes_waiting(self) -> int:
        """Return how many ranks wait to join or have vanished; if there are any, the group forms again."""
        if self._over[0]:
            return 0
        waiting = super().num_nodes_waiting()
        missing = max(0, self._ranks - len(self._state_of_round.state.participants))
        self.vanished = missing > 0
        self._state_of_round.awaited = self._ranks + waiting - missing
        return waiting + missing

    @property
    def place(self) -> Place:
        """The place in the round that has formed."""
        rank, ranks = self._get_world()
        return Place(
            rank=rank, ranks=ranks, round=self._state_holder.state.round, began=self._began,
            restarts=self._rounds - 1,
        )  # fmt: skip

    def finish(self) -> None:
        """Form no further round; may be called in a fork of the process that made it."""
        self._over[0] = 1
