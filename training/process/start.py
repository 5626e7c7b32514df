"""Start of a child process: forked by a fork server where there is one that suits, else a fresh interpreter."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

from preflight.errors import ChildFailed
from training.process.fork_server.client import ForkServer
from training.process.interrupts import held_back

FORK_LIMIT_ERRORS: Final = (errno.EAGAIN, errno.ENOMEM)
"""Errors of fork(2) at a limit on processes or memory."""
ANSWER_LIMIT: Final = 30.0
"""Seconds for a fork server's answer, its imports included, until a fresh interpreter is started instead."""
STATUS_LIMIT: Final = 5.0
"""Seconds for the status of a killed child; a fork server that does not send it hangs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Process to start: a module with a request file, its environment and its open files."""

    module: str
    task: str
    request: Path
    environment: Mapping[str, str]
    stdin: int
    output: int
    """Standard output and standard error."""
    notify: int

    @property
    def descriptors(self) -> Sequence[int]:
        """The open files in the order of an `Order`."""
        return self.stdin, self.output, self.notify


class ChildProcess(Protocol):
    """A process that was started, and everything in its process group."""

    @property
    def pid(self) -> int | None:
        """Its process id; None: a fork server has not sent it yet."""
        ...

    @property
    def answers(self) -> int | None:
        """A descriptor that is readable when `poll` has something to do; None: there is none."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        ...

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most `seconds`; return whether it has ended."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM."""
        ...

    def kill(self) -> None:
        """Send SIGKILL to the whole group and wait for the end."""
        ...


def start(launch: Launch, server: ForkServer | None) -> ChildProcess:
    """Start a process; raises as `FreshProcess`."""
    connection = server and server.order(launch.module, launch.request, launch.environment, launch.descriptors)
    return ForkedProcess(launch, connection, server) if server and connection else FreshProcess(launch)


class FreshProcess:
    """A fresh interpreter: `python -m <module> <request file> ...`."""

    answers: int | None = None

    def __init__(self, launch: Launch) -> None:
        """Start the interpreter.

        Raises:
            ChildFailed: no process can be started.
        """
        # -P: the working directory is no source of modules.
        command = [sys.executable, "-P", "-m", launch.module, str(launch.request), str(launch.notify)]
        try:
            with held_back():  # until the child has its handlers
                self._process = subprocess.Popen(
                    [*command, str(os.getpid())], env=dict(launch.environment), stdin=launch.stdin,
                    stdout=launch.output, stderr=launch.output, pass_fds=(launch.notify,),
                    start_new_session=True,  # the parent handles Ctrl-C
                )  # fmt: skip
        except OSError as error:
            if error.errno not in FORK_LIMIT_ERRORS:
                raise
            raise ChildFailed(
                f"no process could be started for {launch.task} ({error.strerror}); "
                "raise the container's limit on processes or memory"
            ) from error

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most `seconds`; return whether it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.poll() is not None

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the whole group and wait for the end."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class ForkedProcess:
    """A child ordered from a fork server; a fresh interpreter where the server does not start it.

    The server keeps an ended child's process id from being used again until the connection closes.
    """

    def __init__(self, launch: Launch, connection: socket.socket, server: ForkServer) -> None:
        """Wait for the answer of `server` over `connection`, in `poll`; end the server where it hangs."""
        self._server = server
        self._launch = launch
        self._connection = connection
        self._kept = [os.dup(descriptor) for descriptor in launch.descriptors]
        """Open files for a fresh interpreter, until the child is there."""
        self._overdue = time.monotonic() + ANSWER_LIMIT
        self._pid: int | None = None
        self._returncode: int | None = None
        self._fresh: FreshProcess | None = None

    @property
    def pid(self) -> int | None:
        """Its process id; None: the server has not sent it yet."""
        return self._pid if self._fresh is None else self._fresh.pid

    @property
    def answers(self) -> int | None:
        """The connection, while an answer is awaited."""
        return self._connection.fileno() if self._returncode is None and self._fresh is None else None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        self._receive(0)
        awaited = self._pid is None and self._returncode is None and self._fresh is None
        if awaited and time.monotonic() > self._overdue:
            self._server.kill()
            self._connection.close()  # one that another process started lives on, and is not to carry out the order
            self._start_fresh()
        return self._returncode if self._fresh is None else self._fresh.poll()

    def wait(self, seconds: float) -> bool:
        """Wait for its end, at most `seconds`; return whether it has ended."""
        deadline = time.monotonic() + seconds
        while self._fresh is None and self._returncode is None and time.monotonic() < deadline:
            self._receive(deadline - time.monotonic())
        if self._fresh is not None:
            return self._fresh.wait(max(0.0, deadline - time.monotonic()))
        return self._returncode is not None

    def terminate(self) -> None:
        """Send SIGTERM; before the child is there, withdraw the order."""
        if self._fresh is not None:
            self._fresh.terminate()
        elif self._pid is not None and self._returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
        elif self._pid is None:
            self._end(-signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the whole group and wait for the end."""
        if self._fresh is not None:
            self._fresh.kill()
        elif self._pid is not None and self._connection.fileno() >= 0:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            if not self.wait(STATUS_LIMIT):
                self._server.kill()
        self._end(-signal.SIGKILL)
        self._connection.close()

    def _receive(self, seconds: float) -> None:
        """Read the server's answers, waiting at most `seconds` for the first answer."""
        while self._fresh is None and self._returncode is None:
            self._connection.settimeout(seconds)
            try:
                message = self._connection.recv(1 << 10)
            except (TimeoutError, BlockingIOError):
                return
            except OSError:
                message = b""
            match json.loads(message or "null"):
                case {"pid": int(pid)}:
                    self._pid = pid
                    self._release()
                case {"returncode": int(code)}:
                    self._end(code)
                case None if self._pid is not None:  # the server has ended, and the child with it
                    self._end(-signal.SIGKILL)
                case _:
                    self._server.note_refusal()
                    self._start_fresh()
            seconds = 0

    def _start_fresh(self) -> None:
        """Start an interpreter instead. A server that refused waits for its end, with which the connection closes."""
        stdin, output, notify = self._kept
        try:
            self._fresh = FreshProcess(replace(self._launch, stdin=stdin, output=output, notify=notify))
        finally:
            self._release()

    def _end(self, returncode: int) -> None:
        if self._returncode is None:
            self._returncode = returncode
        self._release()

    def _release(self) -> None:
        while self._kept:
            os.close(self._kept.pop())
