"""Client of a fork server: starts it, orders children of it, reads its memory use.

Python's own fork server has the environment of its starter, secrets included, cannot be used from a fork of that and
leaves children behind; a spare interpreter serves one child only, and takes a whole import's memory for it.
"""

import json
import mmap
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from training.process.fork_server import main as fork_server_main
from training.process.fork_server.order import MAX_MESSAGE, ORDER, Order
from training.process.interrupts import held_back

STOP_TIMEOUT: Final = 2.0
"""Longest wait in seconds for the end of a server that was killed."""
_ANONYMOUS: Final = re.compile(r"^RssAnon:\s+([0-9]{1,20}) kB$", re.ASCII | re.MULTILINE)


class ForkServer:
    """A process with torch imported that forks children; started by `start`, used by the starter and its forks."""

    is_lent: bool = False
    """Whether another process has started it, which ends it, too."""

    def __init__(self, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        """Prepare a server whose children have `environment` and share the imports of `modules`."""
        self._environment = dict(environment)
        self._modules = modules
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process unless it runs; it imports while this returns. Raises `OSError` where none can start."""
        if self.running():
            return
        self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)
            arguments = [str(theirs.fileno()), str(os.getpid()), json.dumps(self._modules), "{}"]
            try:
                with held_back():
                    self._process = subprocess.Popen(
                        [sys.executable, "-P", "-m", fork_server_main.MODULE, *arguments],
                        env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True,
                    )  # fmt: skip
            except OSError:
                ours.close()
                raise
        self._control = ours

    @property
    def pid(self) -> int | None:
        """Its process id; None: it was not started."""
        return None if self._process is None else self._process.pid

    def running(self) -> bool:
        """Whether the process runs; to be asked by its starter, not by forks of that."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the process and all its children, if it runs."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT)
            self._process = None

    def kill(self) -> None:
        """End the process and its children, from any process: one that hangs takes no other order."""
        if self._process is not None and self._control is not None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._control.close()
            self._control = None

    def shared_bytes(self) -> int:
        """Return the memory that its children share with it, without mapped files, in bytes; 0 where it has ended."""
        if self._process is None:
            return 0
        try:
            found = _ANONYMOUS.search(Path(f"/proc/{self._process.pid}/status").read_text())
        except OSError:
            return 0
        return int(found[1]) << 10 if found else 0

    def order(
        self, module: str, request: Path, environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> socket.socket | None:
        """Send an order for a child of `module`; return the connection over which it is answered.

        `descriptors` are its standard input, its output and the pipe that it notifies. None: the server cannot be
        used, as it has ended, takes no more orders, or lacks a variable of `environment`.
        """
        extra = self._extra(environment)
        if self._control is None or extra is None:
            return None
        message = ORDER.dump_json(Order(module=module, request=str(request), extra=extra))
        if len(message) > MAX_MESSAGE:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._control, [message], [*descriptors, theirs.fileno()])
            except OSError:  # it has ended, or takes no orders while its queue is full
                ours.close()
                return None
        return ours

    def note_refusal(self) -> None:
        """Note that an order was not carried out, in a fork of the starter: the server has other variables."""

    def lend(self) -> "LentServer | None":
        """Return the server as a fork of its starter uses it for its own children; None: it was not started."""
        if self._control is None or self._process is None:
            return None
        return LentServer(self._environment, self._control, self._process)

    def _extra(self, environment: Mapping[str, str]) -> dict[str, str] | None:
        """Return the variables that `environment` adds to the server's; None where it lacks one of those."""
        if not self._environment.keys() <= environment.keys():
            return None
        base = self._environment
        return {name: value for name, value in environment.items() if base.get(name) != value}


class LentServer(ForkServer):
    """The server of another process, as a fork of that process uses it: one import of torch serves both.

    It is not used again once it has refused an order: its starter's children need other variables.
    """

    is_lent = True

    def __init__(
        self, environment: Mapping[str, str], control: socket.socket, process: "subprocess.Popen[bytes]"
    ) -> None:
        """Use the server `process` with `environment`, which takes orders over `control`."""
        super().__init__(environment, ())
        self._control, self._process = control, process
        self._refused = mmap.mmap(-1, 1)  # which forks of this process share: one of them sends the order

    def start(self) -> None:
        """Do nothing: its starter does."""

    def running(self) -> bool:
        """Whether it can be used; it is no child of this process."""
        return self._control is not None and not self._refused[0] and Path(f"/proc/{self.pid}").exists()

    def stop(self) -> None:
        """Leave it to its starter."""
        if self._control is not None:
            self._control.close()
            self._control = None

    kill = stop

    def order(
        self, module: str, request: Path, environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> socket.socket | None:
        """Send an order, as any server does."""
        connection = super().order(module, request, environment, descriptors)
        if connection is None:
            self.note_refusal()
        return connection

    def note_refusal(self) -> None:
        """Have this process and its forks use it no more."""
        self._refused[0] = 1
