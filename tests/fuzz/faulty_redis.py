"""Faulty Redis connection: at a chosen command the process is killed or stopped, or request or answer is lost.

The traps lie in memory that a worker shares with its supervisors and the test.
"""

import mmap
import os
import signal
from enum import IntEnum
from typing import Final, Literal

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.connection import UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from preflight.redis.untrusted.bounded_connection import PROTOCOL, BoundedParser

Role = Literal["worker", "supervisor"]
SLOTS: Final[dict[Role, int]] = {"worker": 0, "supervisor": 4}
"""First of the numbers of a role: commands until the fault, which fault, commands sent, faults that came."""
TIMEOUT: Final = 5


class Fault(IntEnum):
    """A fault at a command."""

    NONE = 0
    KILL_BEFORE = 1
    """SIGKILL before it is sent."""
    KILL_AFTER = 2
    """SIGKILL after Redis has executed it."""
    LOSE_REQUEST = 3
    """The connection breaks before it is sent."""
    LOSE_ANSWER = 4
    """The connection breaks after Redis has executed it."""
    STOP_BEFORE = 5
    """SIGSTOP before it is sent: the process goes on when the test says so."""
    STOP_AFTER = 6
    """SIGSTOP after Redis has executed it."""


BEFORE: Final = (Fault.KILL_BEFORE, Fault.LOSE_REQUEST, Fault.STOP_BEFORE)


class Shared:
    """Integers in memory shared with forked processes."""

    def __init__(self, size: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 8 * size)).cast("q")

    def __getitem__(self, index: int) -> int:
        return self._numbers[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._numbers[index] = value


class Traps:
    """Pending faults of one worker and its supervisors."""

    def __init__(self) -> None:
        self._shared = Shared(8)
        self.worker_pid = 0
        """Set in the worker; its forks have another pid and are supervisors."""

    def set(self, role: Role, fault: Fault, commands: int) -> None:
        """Trigger `fault` at a later command of `role`, after `commands` others."""
        self._shared[SLOTS[role]] = commands
        self._shared[SLOTS[role] + 1] = fault

    def clear(self) -> None:
        for first in SLOTS.values():
            self._shared[first + 1] = Fault.NONE

    def sent(self, role: Role) -> int:
        """Return the number of commands sent by a role."""
        return self._shared[SLOTS[role] + 2]

    def came(self, role: Role) -> int:
        """Return the number of faults triggered for a role."""
        return self._shared[SLOTS[role] + 3]

    def next(self) -> Fault:
        """Count a command; returns its fault."""
        first = SLOTS["worker" if os.getpid() == self.worker_pid else "supervisor"]
        self._shared[first + 2] += 1
        fault = Fault(self._shared[first + 1])
        if fault is Fault.NONE:
            return fault
        self._shared[first] -= 1
        if self._shared[first] >= 0:
            return Fault.NONE
        self._shared[first + 1] = Fault.NONE
        self._shared[first + 3] += 1
        return fault


class FaultyConnection(UnixDomainSocketConnection):
    """A connection that counts commands; a pipeline or a script counts as one."""

    def __init__(self, *, traps: Traps, path: str, **options: object) -> None:
        UnixDomainSocketConnection.__init__(self, path=path, **options)
        self._traps = traps
        self._setting_up = False
        self._fault = Fault.NONE

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Set the connection up without counting its commands."""
        self._setting_up = True
        try:
            UnixDomainSocketConnection.on_connect_check_health(self, check_health)
        finally:
            self._setting_up = False

    def send_packed_command(self, command: object, check_health: bool = True) -> None:
        if not self._setting_up:
            fault = self._traps.next()
            if fault in BEFORE:
                self._happen(fault)
            else:
                self._fault = fault
        UnixDomainSocketConnection.send_packed_command(self, command, check_health)

    def read_response(self, *arguments: object, **options: object) -> object:
        try:
            return super().read_response(*arguments, **options)
        finally:
            fault, self._fault = self._fault, Fault.NONE
            if fault is not Fault.NONE:
                self._happen(fault)

    def _happen(self, fault: Fault) -> None:
        if fault in (Fault.KILL_BEFORE, Fault.KILL_AFTER):
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault in (Fault.STOP_BEFORE, Fault.STOP_AFTER):
            os.kill(os.getpid(), signal.SIGSTOP)
        else:
            UnixDomainSocketConnection.disconnect(self)
            raise RedisConnectionError("the test has cut the connection")


def faulty_redis(path: str, traps: Traps) -> Redis:
    """Return a connection like the worker's own, with traps."""
    pool = ConnectionPool(
        connection_class=FaultyConnection, path=path, traps=traps, socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT, retry=Retry(NoBackoff(), 0), parser_class=BoundedParser, protocol=PROTOCOL,
    )  # fmt: skip
    return Redis(connection_pool=pool)
