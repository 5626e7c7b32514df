"""Child processes: starting, stopping and reading them.

Each child is a separate process, a fresh interpreter or a fork of one that has only imported, so that no fork follows
OpenMP work and the out-of-memory killer ends the child and not the service. It answers through its journal alone.
Guarantees: a child dies with its parent; leaving the `Child` context ends its whole process group; every record that
the child wrote whole is read, however it ended.

A pipe notifies the parent of each record, and of the end of the child, so that nobody polls.
"""

import os
import select
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from preflight.files.journal import JournalReader, Record
from training.process.exit_status import ExitStatus
from training.process.fork_server.client import ForkServer
from training.process.oom import ChildCgroup
from training.process.request import CHILD_REQUEST, ChildRequest
from training.process.start import Launch, start

KILL_TIMEOUT: Final = 1.0
"""Seconds between SIGTERM and SIGKILL."""
MAX_STDERR_BYTES: Final = 2_000
"""Most bytes that are read from the end of a crashed child's stderr."""


class Child:
    """A running child and its journal. Use as a context: leaving it ends the child."""

    def __init__(
        self, module: str, body: bytes, directory: Path, environment: Mapping[str, str],
        cgroup: ChildCgroup | None = None, *, task: str | None = None, name: str | None = None, listens: bool = False,
        shares: int = 1, server: ForkServer | None = None,
    ) -> None:  # fmt: skip
        """Start `python -m module`, or have `server` fork it.

        Args:
            module: name of one with a function `main` that calls `serve_request`.
            body: the request, as JSON.
            directory: an existing one for its files.
            environment: variables of the process.
            cgroup: the one in which it runs, entered by the caller; None: a cgroup for this child alone.
            task: name for messages and the process list, by default the module.
            name: prefix of its files, by default made from the module.
            listens: whether it reads standard input, see `send`.
            shares: workers among which the memory of the container is divided.
            server: one that forks the child, unless it cannot; None: a fresh interpreter is started.

        Raises:
            OSError: the directory cannot be written.
            ChildFailed: no process can be started.
        """
        self.module = module
        self.task = task or module
        self._name = name or file_name(module)
        self._exit_status: ExitStatus | None = None
        with ExitStack() as stack:
            shared = server.shared_bytes() if server is not None else 0
            self._cgroup = stack.enter_context(ChildCgroup(shares=shares, shared=shared)) if cgroup is None else cgroup
            self._kills_before = self._cgroup.oom_kills()
            self._notified, notify = os.pipe()
            stack.callback(os.close, self._notified)
            with os.fdopen(notify, "wb"):  # closed here once the child has it, so that its end ends the pipe
                os.set_blocking(notify, False)  # a full pipe must not block the child
                self._start(self._write_request(body, directory), environment, notify, listens=listens, server=server)
            self._resources = stack.pop_all()

    def _write_request(self, body: bytes, directory: Path) -> Path:
        run = f"{self._name}-{os.getpid()}-{time.time_ns()}"
        request = ChildRequest(
            task=self.task, run=run, journal=directory / f"{self._name}.jsonl", body=body.decode(),
            procs=self._cgroup.procs,
        )  # fmt: skip
        path = directory / f"{self._name}.request.json"
        path.write_bytes(CHILD_REQUEST.dump_json(request))
        self._stderr = directory / f"{self._name}.stderr"
        self._reader = JournalReader(request.journal, run)
        return path

    def _start(
        self, request: Path, environment: Mapping[str, str], notify: int, *, listens: bool, server: ForkServer | None
    ) -> None:
        stdin, write_end = os.pipe() if listens else (os.open(os.devnull, os.O_RDONLY), None)
        self._stdin = os.fdopen(write_end, "wb") if write_end is not None else None
        with os.fdopen(stdin, "rb"), self._stderr.open("wb") as output:
            launch = Launch(
                module=self.module, task=self.task, request=request, environment=environment, stdin=stdin,
                output=output.fileno(), notify=notify,
            )  # fmt: skip
            self._process = start(launch, server)

    @property
    def pid(self) -> int | None:
        """Process id; None while a fork server has not sent it."""
        return self._process.pid

    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def records(self) -> list[Record]:
        """Return the records since the last call; read once more after the end."""
        return self._reader.read()

    def wait(self, seconds: float) -> bool:
        """Wait for a record or the end, at most `seconds`; return whether there was one."""
        deadline = time.monotonic() + seconds
        while True:
            ready = readable(max(0.0, deadline - time.monotonic()), self._notified, self._process.answers)
            if self._notified in ready:
                if not os.read(self._notified, 1 << 16):  # end of file: the child closed it
                    self._process.wait(seconds)
                return True
            ended = self._process.poll() is not None
            if ended or not ready:
                return ended

    def send(self, line: bytes) -> None:
        """Send one line to a child that listens; no error where it has ended."""
        if self._stdin is not None:
            with suppress(BrokenPipeError):
                self._stdin.write(line + b"\n")
                self._stdin.flush()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, and end of file to one that listens: the child ends after its current step."""
        if self._stdin is not None:
            with suppress(BrokenPipeError):
                self._stdin.close()
        if self.running():
            self._process.terminate()

    def end(self, timeout: float = KILL_TIMEOUT) -> ExitStatus:
        """End the child: SIGTERM, then after `timeout` seconds SIGKILL to its whole process group."""
        self.ask_to_stop()
        try:
            self._process.wait(timeout)
        finally:
            self._process.kill()
        return self.exit_status()

    def exit_status(self) -> ExitStatus:
        """Wait for the end and return the exit status."""
        if self._exit_status is None:
            returncode = self._await_end()
            killed = self._cgroup.oom_kills() > self._kills_before
            self._exit_status = ExitStatus(
                returncode,
                self._stderr_tail(),
                # The kernel may have killed a loader worker, for lack of which the child failed.
                out_of_memory=killed and (returncode > 0 or returncode == -signal.SIGKILL),
                limit_bytes=self._cgroup.limit_bytes(),
                peak_bytes=self._cgroup.peak_bytes(),
            )
        return self._exit_status

    def _await_end(self) -> int:
        while (returncode := self._process.poll()) is None:
            self._process.wait(KILL_TIMEOUT)
        return returncode

    def _stderr_tail(self) -> str:
        try:
            with self._stderr.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_STDERR_BYTES))
                return file.read().decode(errors="replace")
        except OSError:  # deleted meanwhile
            return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._resources:
            self.end(0 if error else KILL_TIMEOUT)


def readable(seconds: float, *descriptors: int | None) -> list[int]:
    """Wait at most `seconds` until a file descriptor has data or is at its end; return those that are."""
    poll = select.poll()
    for descriptor in descriptors:
        if descriptor is not None:
            poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(1000 * seconds)]


def file_name(module: str) -> str:
    """Return the prefix of the files of a child of `module`."""
    return module.replace(".", "-")
