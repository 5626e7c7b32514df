"""Child processes: how they are started, supervised, stopped, and how they answer.

Each child is a fresh interpreter (`python -m <module> <request file>`), so that no fork follows OpenMP work and
a kill for memory takes the child and not the service. It answers through its journal alone. What is guaranteed:
a child dies with its parent; leaving the `Child` context ends its whole process group; every record that the
child wrote whole is read, however it ended. Not guaranteed: that a killed child left a last word.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, NoReturn, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from training.errors import ChildFailed, PreflightError, named
from training.journal import JournalReader, JournalWriter, Record

KILL_AFTER: Final = 1.0
"""Seconds between SIGTERM and SIGKILL when a child is ended."""
PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>: the signal this process gets when its parent dies."""
POLL_SECONDS: Final = 0.05
"""Between two looks at a child's journal."""
STDERR_TAIL: Final = 2_000
"""Bytes of a crashed child's stderr that are read."""

Body = TypeVar("Body")


@validated(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Envelope:
    """What every child is told, beside its own request."""

    run: str
    journal: Path
    parent: int
    body: str
    """The request proper, as JSON."""


ENVELOPE = TypeAdapter(Envelope)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended that wrote neither `done` nor `fail`."""

    returncode: int
    stderr: str

    def describe(self) -> str:
        """Return what happened, as a clause."""
        if self.returncode == -signal.SIGKILL:
            return "was killed (signal 9), as the kernel does when memory runs out"
        if self.returncode < 0:
            return f"was ended by {signal.strsignal(-self.returncode)} (signal {-self.returncode})"
        last_line = self.stderr.strip().rpartition("\n")[2]
        return f"exited with code {self.returncode}" + (f": {last_line}" if last_line else " without a word")


class Child:
    """A running child and its journal. Use as a context: leaving it ends the child."""

    def __init__(self, module: str, body: bytes, directory: Path, environment: Mapping[str, str]) -> None:
        """Start `python -m module` with `body` (JSON) as its request; files go to the existing `directory`.

        Raises:
            OSError: the directory cannot be written, or no process can be started.
        """
        self.module = module
        name = module.replace(".", "-")
        run = f"{name}-{os.getpid()}-{time.time_ns()}"
        envelope = Envelope(run=run, journal=directory / f"{name}.jsonl", parent=os.getpid(), body=body.decode())
        request = directory / f"{name}.request.json"
        request.write_bytes(ENVELOPE.dump_json(envelope))
        self._stderr = directory / f"{name}.stderr"
        self._reader = JournalReader(envelope.journal, run)
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                # -P: the working directory is no source of modules.
                [sys.executable, "-P", "-m", module, str(request)],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,  # Ctrl-C at the terminal is the parent's to handle
            )

    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def records(self) -> list[Record]:
        """Return what the child wrote since the last call; read once more after it has ended."""
        return self._reader.read()

    def ask_to_stop(self) -> None:
        """Send SIGTERM: the child ends after its current step."""
        if self.running():
            self._process.terminate()

    def end(self, patience: float = KILL_AFTER) -> Ending:
        """End the child: SIGTERM, then after `patience` seconds SIGKILL to its whole process group."""
        self.ask_to_stop()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _kill_group(self._process.pid)
            self._process.wait()
        return self.ending()

    def ending(self) -> Ending:
        """Wait for the end and say how it came."""
        returncode = self._process.wait()
        try:
            with self._stderr.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - STDERR_TAIL))
                return Ending(returncode, file.read().decode(errors="replace"))
        except OSError:  # deleted meanwhile
            return Ending(returncode, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(0 if error else KILL_AFTER)


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nothing is left of it


def follow(child: Child, tick: Callable[[], None], interval: float = POLL_SECONDS) -> Iterator[Record]:
    """Yield a child's records as they come, until it has written `done`, which is the last one yielded.

    `tick` is called every `interval` seconds; what it raises ends the wait, and the context ends the child.

    Raises:
        PreflightError: the child recorded a failure (under its own reason).
        ChildFailed: the child ended without `done` or `fail`.
    """
    while True:
        ended = not child.running()
        for record in child.records():
            if record.kind == "fail":
                raise_failure(record)
            yield record
            if record.kind == "done":
                return
        if ended:
            raise ChildFailed(f"the {child.module} process {child.ending().describe()}")
        tick()
        time.sleep(interval)


def raise_failure(record: Record) -> NoReturn:
    """Raise what a `fail` record holds under its own name."""
    match record.payload:
        case {"reason": str(reason), "message": str(message), "field": None | str() as field}:
            raise named(reason, message, field)
    raise ChildFailed(f"a child failed with a record nobody can read: {record.payload!r}")


class StopFlag:
    """Becomes true at the first SIGTERM."""

    def __init__(self) -> None:
        self._asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signal handler's signature
        self._asked = True

    def __call__(self) -> bool:
        """Whether somebody asked this process to stop."""
        return self._asked


def run_child(request: TypeAdapter[Body], body: Callable[[Body, JournalWriter, StopFlag], None]) -> NoReturn:
    """Be a child: read the request named on the command line, run `body`, record a failure, exit.

    Exit code 0 after `body`, 1 after a failure that was recorded.
    """
    should_stop = StopFlag()
    envelope = ENVELOPE.validate_json(Path(sys.argv[1]).read_bytes())
    die_with_parent(envelope.parent)
    with JournalWriter(envelope.journal, envelope.run) as journal:
        try:
            body(request.validate_json(envelope.body), journal, should_stop)
        except PreflightError as error:
            failure = {"reason": error.reason, "message": error.message, "field": error.field}
            journal.write("fail", {**failure}, durable=True)
            raise SystemExit(1) from error
    raise SystemExit(0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; exit at once when that has happened already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
