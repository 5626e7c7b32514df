"""Child processes: how they are started, stopped and read.

Each child is a fresh interpreter (`python -m <module> <request file>`), so that no fork follows OpenMP work and
the out-of-memory killer ends the child and not the service. It answers through its journal alone. Guarantees: a child
dies with its parent; leaving the `Child` context ends its whole process group; every record that the child wrote
whole is read, however it ended.

A pipe notifies the parent of each record, and of the end of the child, so that nobody polls.
"""

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from training.errors import ChildFailed
from training.process.exit_status import ExitStatus
from training.process.journal import JournalReader, Record
from training.process.oom import ChildCgroup
from training.process.request import CHILD_REQUEST, ChildRequest

FORK_LIMIT_ERRORS: Final = (errno.EAGAIN, errno.ENOMEM)
"""Errors of fork(2) at a limit on processes or memory."""
KILL_TIMEOUT: Final = 1.0
"""Seconds between SIGTERM and SIGKILL."""
MAX_STDERR_BYTES: Final = 2_000
"""Read from the end of a crashed child's stderr."""


class Child:
    """A running child and its journal. Use as a context: leaving it ends the child."""

    def __init__(
        self, module: str, body: bytes, directory: Path, environment: Mapping[str, str],
        cgroup: ChildCgroup | None = None, *, task: str | None = None, name: str | None = None, listens: bool = False,
        shares: int = 1,
    ) -> None:  # fmt: skip
        """Start `python -m module`.

        Args:
            module: that calls `serve_request`.
            body: the request, as JSON.
            directory: existing, for its files.
            environment: of the process.
            cgroup: where it runs, entered by the caller; None: a cgroup for this child alone.
            task: for messages, by default the module.
            name: prefix of its files, by default made from the module.
            listens: whether it reads standard input, see `send`.
            shares: workers among which the memory of the container is divided.

        Raises:
            OSError: the directory cannot be written.
            ChildFailed: no process can be started.
        """
        self.module = module
        self.task = task or module
        self._name = name or file_name(module)
        self._exit_status: ExitStatus | None = None
        with ExitStack() as stack:
            self._cgroup = stack.enter_context(ChildCgroup(shares=shares)) if cgroup is None else cgroup
            self._kills_before = self._cgroup.oom_kills()
            self._notified, notify_fd = os.pipe()
            stack.callback(os.close, self._notified)
            with os.fdopen(notify_fd, "wb"):  # closed here once the child has it, so that its end ends the pipe
                self._start(body, directory, environment, notify_fd, listens=listens)
            self._resources = stack.pop_all()

    def _start(
        self, body: bytes, directory: Path, environment: Mapping[str, str], notify_fd: int, *, listens: bool
    ) -> None:
        os.set_blocking(notify_fd, False)  # a full pipe must not block the child
        run = f"{self._name}-{os.getpid()}-{time.time_ns()}"
        request = ChildRequest(
            run=run, journal=directory / f"{self._name}.jsonl", parent=os.getpid(), body=body.decode(),
            procs=self._cgroup.procs, notify_fd=notify_fd,
        )  # fmt: skip
        request_path = directory / f"{self._name}.request.json"
        request_path.write_bytes(CHILD_REQUEST.dump_json(request))
        self._stderr = directory / f"{self._name}.stderr"
        self._reader = JournalReader(request.journal, run)
        with self._stderr.open("wb") as stderr:
            try:
                self._process = subprocess.Popen(
                    # -P: the working directory is no source of modules.
                    [sys.executable, "-P", "-m", self.module, str(request_path)],
                    env=dict(environment),
                    stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    pass_fds=(notify_fd,),
                    start_new_session=True,  # the parent handles Ctrl-C
                )
            except OSError as error:
                if error.errno not in FORK_LIMIT_ERRORS:
                    raise
                raise ChildFailed(
                    f"no process could be started for {self.task} ({error.strerror}); "
                    "raise the container's limit on processes or memory"
                ) from error

    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def records(self) -> list[Record]:
        """Return the records since the last call; read once more after the end."""
        return self._reader.read()

    def wait(self, seconds: float) -> bool:
        """Wait for a record or the end, at most `seconds`; returns whether there was one."""
        if not readable(self._notified, seconds):
            return False
        if not os.read(self._notified, 1 << 16):  # end of file: the child closed it
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return True

    def send(self, line: bytes) -> None:
        """Send one line to a child that listens; no error where it has ended."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(line + b"\n")
                self._process.stdin.flush()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, and end of file to one that listens: the child ends after its current step."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        if self.running():
            self._process.terminate()

    def end(self, timeout: float = KILL_TIMEOUT) -> ExitStatus:
        """End the child: SIGTERM, then after `timeout` seconds SIGKILL to its whole process group."""
        self.ask_to_stop()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        return self.exit_status()

    def exit_status(self) -> ExitStatus:
        """Wait for the end and return how it came."""
        if self._exit_status is None:
            returncode = self._process.wait()
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


def readable(descriptor: int, seconds: float) -> bool:
    """Wait at most `seconds` until a file descriptor has data or is at its end; returns whether it is."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def file_name(module: str) -> str:
    """Return the prefix of the files of a child of `module`."""
    return module.replace(".", "-")
