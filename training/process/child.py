"""Child processes: how they are started, supervised, stopped, and how they answer.

Each child is a fresh interpreter (`python -m <module> <request file>`), so that no fork follows OpenMP work and
a kill for memory takes the child and not the service. It answers through its journal alone. What is guaranteed:
a child dies with its parent; leaving the `Child` context ends its whole process group; every record that the
child wrote whole is read, however it ended. Not guaranteed: that a killed child left a last word.

A bell, the write end of a pipe, tells the parent that there is a record to read; the kernel rings it when the child
ends. So nobody looks again and again, which would take the processor from the child's threads.
"""

import ctypes
import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, NoReturn, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from training.errors import ChildFailed, ChildKilled, OutOfMemory, PreflightError, named
from training.process.journal import JournalReader, JournalWriter, Record
from training.process.oom import Enclosure

NO_PROCESS: Final = (errno.EAGAIN, errno.ENOMEM)
"""Errors of fork(2) where a limit on processes, or memory, is used up."""
KILL_AFTER: Final = 1.0
"""Seconds between SIGTERM and SIGKILL when a child is ended."""
PR_SET_PDEATHSIG: Final = 1
"""From <linux/prctl.h>: the signal this process gets when its parent dies."""
TICK_SECONDS: Final = 0.2
"""Longest that a parent waits for the bell: a signal, or the cancellation of a job, is heard after as long."""
STDERR_TAIL: Final = 2_000
"""Bytes of a crashed child's stderr that are read."""
NO_MEMORY: Final = ("can't allocate memory", "not enough memory", "std::bad_alloc")
"""How torch puts it, in a `RuntimeError` (c10/core/impl/alloc_cpu.cpp)."""
NO_THREAD: Final = ("can't start new thread", "Thread creation failed", "pthread_create failed")
"""How Python, libgomp and OpenBLAS say that a limit on processes, in which threads count, is used up."""

Body = TypeVar("Body")


@validated(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Envelope:
    """What every child is told, beside its own request."""

    run: str
    journal: Path
    parent: int
    body: str
    """The request proper, as JSON."""
    procs: Path | None = None
    """The file of the cgroup that the child shall move to."""
    bell: int | None = None
    """The file descriptor to ring after each record."""


ENVELOPE = TypeAdapter(Envelope)


SIGNALS: Final[dict[int, str]] = {
    signal.SIGILL: "was ended by an illegal instruction (signal 4): this processor lacks an instruction that the "
    "installed build of torch uses",
    signal.SIGBUS: "was ended by a bus error (signal 7): a file that it had mapped was cut short, or its disk failed",
    signal.SIGKILL: "was killed (signal 9) by somebody: the kernel counted no kill for memory",
    signal.SIGSEGV: "was ended by a segmentation fault (signal 11)",
    signal.SIGTERM: "was terminated (signal 15) before it could end by itself",
}
"""What the ends by signal mean for a training, as clauses."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended that wrote neither `done` nor `fail`."""

    returncode: int
    stderr: str
    out_of_memory: bool = False
    """Whether the kernel killed it, or a process of its own, for memory."""
    limit_bytes: int | None = None
    """What it was allowed, where that is known."""
    peak_bytes: int | None = None
    """The most that it had, where that is known."""

    def describe(self) -> str:
        """Return what happened, as a clause."""
        if self.out_of_memory:
            return f"was killed (signal 9) because memory ran out{self._memory()}"
        if self.returncode < 0:
            number = -self.returncode
            return SIGNALS.get(number, f"was ended by {signal.strsignal(number)} (signal {number})")
        last_line = self.stderr.strip().rpartition("\n")[2]
        advice = "; raise the container's limit on processes" if any(said in last_line for said in NO_THREAD) else ""
        return f"exited with code {self.returncode}" + (f": {last_line}{advice}" if last_line else " without a word")

    def _memory(self) -> str:
        known = (("it may use", self.limit_bytes), ("had at its peak", self.peak_bytes))
        said = [f"{what} {count / (1 << 20):,.0f} MiB" for what, count in known if count is not None]
        return f" ({' and '.join(said)})" if said else ""

    def error(self, module: str) -> PreflightError:
        """Return what to raise for a child of `module` that ended so."""
        message = f"the {module} process {self.describe()}"
        if self.out_of_memory:
            return OutOfMemory(f"{message}; use a smaller batch_size or give the container more memory")
        return ChildKilled(message) if self.returncode < 0 else ChildFailed(message)


class Child:
    """A running child and its journal. Use as a context: leaving it ends the child."""

    def __init__(
        self, module: str, body: bytes, directory: Path, environment: Mapping[str, str],
        enclosure: Enclosure | None = None, *, name: str | None = None, listens: bool = False,
    ) -> None:  # fmt: skip
        """Start `python -m module` with `body` (JSON) as its request; files go to the existing `directory`.

        It runs in `enclosure`, whose context outlives it, or in one of its own. Its files begin with `name`, by
        default that of the module. One that `listens` reads what is sent from its standard input.

        Raises:
            OSError: the directory cannot be written.
            ChildFailed: no process can be started.
        """
        self.module = module
        self._name = name or file_name(module)
        self._ending: Ending | None = None
        with ExitStack() as stack:
            self._enclosure = stack.enter_context(Enclosure()) if enclosure is None else enclosure
            self._kills_before = self._enclosure.oom_kills()
            self._bell, theirs = os.pipe()
            stack.callback(os.close, self._bell)
            with os.fdopen(theirs, "wb"):  # closed here once the child has it, so that its end ends the pipe
                self._start(body, directory, environment, subprocess.PIPE if listens else subprocess.DEVNULL, theirs)
            self._leaving = stack.pop_all()

    def _start(self, body: bytes, directory: Path, environment: Mapping[str, str], stdin: int, bell: int) -> None:
        os.set_blocking(bell, False)  # a parent that does not listen must not hold up the child
        run = f"{self._name}-{os.getpid()}-{time.time_ns()}"
        envelope = Envelope(
            run=run, journal=directory / f"{self._name}.jsonl", parent=os.getpid(), body=body.decode(),
            procs=self._enclosure.procs, bell=bell,
        )  # fmt: skip
        request = directory / f"{self._name}.request.json"
        request.write_bytes(ENVELOPE.dump_json(envelope))
        self._stderr = directory / f"{self._name}.stderr"
        self._reader = JournalReader(envelope.journal, run)
        with self._stderr.open("wb") as stderr:
            try:
                self._process = subprocess.Popen(
                    # -P: the working directory is no source of modules.
                    [sys.executable, "-P", "-m", self.module, str(request)],
                    env=dict(environment),
                    stdin=stdin,
                    stdout=stderr,
                    stderr=stderr,
                    pass_fds=(bell,),
                    start_new_session=True,  # Ctrl-C at the terminal is the parent's to handle
                )
            except OSError as error:
                if error.errno not in NO_PROCESS:
                    raise
                raise ChildFailed(
                    f"no process could be started for {self.module} ({error.strerror}); "
                    "raise the container's limit on processes or memory"
                ) from error

    def running(self) -> bool:
        """Whether the process has not ended yet."""
        return self._process.poll() is None

    def records(self) -> list[Record]:
        """Return what the child wrote since the last call; read once more after it has ended."""
        return self._reader.read()

    def wait(self, seconds: float) -> bool:
        """Wait until the child has written something or has ended, at most `seconds`; returns whether it has."""
        if not readable(self._bell, seconds):
            return False
        if not os.read(self._bell, 1 << 16):  # nobody holds the other end any more
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return True

    def send(self, line: bytes) -> None:
        """Send one line to a child that listens; one that has ended hears nothing."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(line + b"\n")
                self._process.stdin.flush()

    def ask_to_stop(self) -> None:
        """Send SIGTERM, and the end of its input to one that listens: the child ends after its current step."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
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
        if self._ending is None:
            returncode = self._process.wait()
            killed = self._enclosure.oom_kills() > self._kills_before
            self._ending = Ending(
                returncode,
                self._last_words(),
                # A loader worker may have been the victim, and the child have failed for lack of it.
                out_of_memory=killed and (returncode > 0 or returncode == -signal.SIGKILL),
                limit_bytes=self._enclosure.limit_bytes(),
                peak_bytes=self._enclosure.peak_bytes(),
            )
        return self._ending

    def _last_words(self) -> str:
        try:
            with self._stderr.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - STDERR_TAIL))
                return file.read().decode(errors="replace")
        except OSError:  # deleted meanwhile
            return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._leaving:
            self.end(0 if error else KILL_AFTER)


def readable(descriptor: int, seconds: float) -> bool:
    """Wait until there is something to read, or its end, at most `seconds`; returns whether there is."""
    listening = select.poll()
    listening.register(descriptor, select.POLLIN)
    return bool(listening.poll(1000 * seconds))


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nothing is left of it


def file_name(module: str) -> str:
    """Return what the files of a child of `module` begin with."""
    return module.replace(".", "-")


def follow(child: Child, tick: Callable[[], None]) -> Iterator[Record]:
    """Yield a child's records as they come, until it has written `done`, which is the last one yielded.

    `tick` is called every `TICK_SECONDS` or more often; what it raises ends the wait, and the context ends the child.

    Raises:
        PreflightError: the child recorded a failure (under its own reason).
        OutOfMemory: the kernel killed it for memory.
        ChildFailed: the child ended without `done` or `fail`; `ChildKilled` where a signal ended it.
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
            raise child.ending().error(child.module)
        tick()
        while not child.wait(TICK_SECONDS):
            tick()


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
    move_out(envelope.procs)
    if envelope.bell is not None:
        os.set_inheritable(envelope.bell, False)  # its own children ring nothing
    with JournalWriter(envelope.journal, envelope.run, envelope.bell) as journal:
        try:
            body(request.validate_json(envelope.body), journal, should_stop)
        except (PreflightError, MemoryError, RuntimeError) as error:
            named_error = error if isinstance(error, PreflightError) else out_of_memory(error)
            if named_error is None:
                raise
            failure = {"reason": named_error.reason, "message": named_error.message, "field": named_error.field}
            journal.write("fail", {**failure}, durable=True)
            raise SystemExit(1) from error
        finally:
            # At its end Python gives a signal with a handler its default back, and who has finished would look killed.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


def out_of_memory(error: Exception) -> OutOfMemory | None:
    """Return Python's and torch's errors of a failed allocation under their name, None for any other error."""
    text = str(error)
    if not isinstance(error, MemoryError) and not any(words in text for words in NO_MEMORY):
        return None
    first_line = text.strip().partition("\n")[0] or type(error).__name__
    return OutOfMemory(
        f"memory could not be had ({first_line}); use a smaller batch_size or give the container more memory"
    )


def move_out(procs: Path | None) -> None:
    """Be the kernel's first victim when memory runs out, in the cgroup of `procs` if there is one.

    Where either is refused, the child runs all the same.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if procs is not None:
        with suppress(OSError):
            procs.write_text(str(os.getpid()))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; exit at once when that has happened already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
