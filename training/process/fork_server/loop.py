"""Order loop of the fork server: forks a child for each order, reports its status, ends it with its parent.

The answers over the connection that comes with an order are the child's process id, then its exit code. A connection
that closes ends the child; the server's end ends all of them. An ended child stays a zombie until its connection
closes, so that its process id is not used again.
"""

import importlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from training.process.child_main import die_with_parent
from training.process.fork_server.imports import Imports, reseed
from training.process.fork_server.order import MAX_MESSAGE, ORDER, STDERR, STDIN, STDOUT, Order

StartAgain = Callable[[socket.socket, dict[str, str]], None]


@dataclass(frozen=True, slots=True)
class ForkedChild:
    """Module and arguments that a forked child runs."""

    module: str
    arguments: tuple[str, ...]
    """Arguments as on the command line of a fresh interpreter, see `serve_request`."""

    def run(self) -> None:
        """Call the module's `main`; raises `SystemExit` with the child's exit code."""
        sys.argv = [self.module, *self.arguments]
        importlib.import_module(self.module).main()


@dataclass(slots=True)
class _Child:
    pid: int
    pidfd: int
    connection: socket.socket
    ended: bool = False
    """Whether it has ended and its status was sent; it is a zombie until the connection closes."""


class OrderLoop:
    """Serves orders that come over `control` until its peer closes it."""

    def __init__(self, control: socket.socket, imports: Imports, start_again: StartAgain) -> None:
        """Fork children that share `imports`; `start_again` is called to become a server with other variables."""
        self._control = control
        self._imports = imports
        self._start_again = start_again
        self._extra: dict[str, str] = {}
        self._wanted: dict[str, str] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._children: dict[int, _Child] = {}
        self._refused: set[socket.socket] = set()
        """Connections of orders for another environment; one closes when the child that ran instead has ended."""

    def serve(self, extra: dict[str, str]) -> ForkedChild | None:
        """Return, in each forked child, what it runs; in the server None, once nobody can send an order.

        `extra` are the variables of this process that a plan has added.
        """
        self._extra = self._wanted = extra
        while True:
            ready = [key for key, _ in self._selector.select()]
            # Ends of children before ends of connections, with which a child is forgotten.
            for key in sorted(ready, key=lambda each: isinstance(each.fileobj, socket.socket)):
                if key.fileobj is self._control:
                    continue
                if isinstance(key.fileobj, socket.socket):
                    self._close(key.fileobj)
                else:
                    self._report(key.fd)
            if self._wanted != self._extra and not self._children and not self._refused:
                self._start_again(self._control, self._wanted)  # before the next order, which would be refused, too
            if any(key.fileobj is self._control for key in ready):
                received = self._receive()
                if received is None:
                    return None
                forked = self._fork(*received)
                if forked is not None:
                    return forked

    def _receive(self) -> tuple[Order, list[int]] | None:
        message, descriptors, _, _ = socket.recv_fds(self._control, MAX_MESSAGE, 4)
        return (ORDER.validate_json(message), descriptors) if message else None

    def _fork(self, order: Order, descriptors: list[int]) -> ForkedChild | None:
        """Carry out an order; return what the child runs, None in the server."""
        connection = socket.socket(fileno=descriptors[-1])
        standard = descriptors[:-1]
        try:
            if is_closed(connection):  # the order was given up
                connection.close()
                return None
            is_current = self._imports.are_current()
            if not is_current and not self._children:
                raise SystemExit(0)  # an upgraded torch must not be mixed with the old one; a new server follows
            if order.extra != self._extra or not is_current:
                self._wanted = order.extra
                self._refused.add(connection)
                self._selector.register(connection, selectors.EVENT_READ)
                connection.send(b"{}")
                return None
            return self._fork_child(order, connection, standard)
        finally:
            for descriptor in standard:
                os.close(descriptor)

    def _fork_child(self, order: Order, connection: socket.socket, standard: list[int]) -> ForkedChild | None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # a limit on processes or memory: a fresh interpreter reports it
            connection.close()
            return None
        if pid == 0:
            notify = self._become_child(server, connection, standard)
            return ForkedChild(order.module, (order.request, str(notify)))
        child = _Child(pid, os.pidfd_open(pid), connection)
        self._children[child.pidfd] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ)
        self._selector.register(connection, selectors.EVENT_READ)
        _send(connection, {"pid": pid})
        return None

    def _become_child(self, server: int, connection: socket.socket, standard: list[int]) -> int:
        """Leave the server behind, in the fork; return the descriptor of the pipe that the child notifies."""
        os.setsid()
        die_with_parent(server)
        self._selector.close()
        for other in self._children.values():
            os.close(other.pidfd)
            other.connection.close()
        for each in (self._control, connection, *self._refused):
            each.close()
        stdin, output, notify = standard
        for source, target in ((stdin, STDIN), (output, STDOUT), (output, STDERR)):
            os.dup2(source, target)
        reseed()
        return os.dup(notify)  # the caller closes what came with the order

    def _report(self, pidfd: int) -> None:
        """Send the status of a child that has ended; it stays a zombie, so that its process id is not used again."""
        child = self._children[pidfd]
        self._selector.unregister(pidfd)
        ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        child.ended = True
        if ended is not None:
            killed = ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
            _send(child.connection, {"returncode": -ended.si_status if killed else ended.si_status})

    def _close(self, connection: socket.socket) -> None:
        """End the child whose parent has closed its connection."""
        self._selector.unregister(connection)
        connection.close()
        self._refused.discard(connection)
        for child in [child for child in self._children.values() if child.connection is connection]:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            if not child.ended:
                self._selector.unregister(child.pidfd)
            os.close(child.pidfd)
            del self._children[child.pidfd]


def is_closed(connection: socket.socket) -> bool:
    """Whether the peer has closed its end."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _send(connection: socket.socket, message: dict[str, int]) -> None:
    with suppress(OSError):  # the parent has gone; its end of the connection shows that next
        connection.send(json.dumps(message).encode())
