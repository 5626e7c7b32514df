"""Main function of a child process: read the request, run the task, record its failure."""

import atexit
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, TypeVar

from pydantic import TypeAdapter

from preflight.errors import OutOfMemory, PreflightError
from preflight.files.journal import JournalWriter, RecordWriter
from training.process.interrupts import ignore_stop_signals, release, set_stop_handler
from training.process.request import CHILD_REQUEST

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
"""Options of prctl (<linux/prctl.h>): the signal for a process whose parent dies; its name in ps and top."""
NO_MEMORY: Final = ("can't allocate memory", "not enough memory", "std::bad_alloc")
"""Messages of torch's `RuntimeError` (c10/core/impl/alloc_cpu.cpp)."""
NO_GPU_MEMORY: Final = ("CUDA out of memory", "STATUS_ALLOC_FAILED")
"""The same of a GPU (c10/cuda/CUDACachingAllocator.cpp), and of cuDNN and cuBLAS, which allocate outside of torch."""

Body = TypeVar("Body")


class StopFlag:
    """Becomes true at the first stop signal; a task that does not read it ignores them."""

    def __init__(self) -> None:
        self._stopped = False
        set_stop_handler(self._on_signal)
        release()  # the parent held them back until now

    def __call__(self) -> bool:
        """Whether a stop signal was received."""
        return self._stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signal handler's signature
        self._stopped = True


def serve_request(body: TypeAdapter[Body], task: Callable[[Body, JournalWriter, StopFlag], None]) -> NoReturn:
    """Run `task` on the request named on the command line; exit with 0, or with 1 after a recorded failure.

    Arguments are the path of the request file; the descriptor of a pipe that gets a byte after each record, if
    there is one; and the process id of the parent with which this process dies, unless it is a fork that does so.
    """
    should_stop = StopFlag()
    path, *more = sys.argv[1:]
    notify_fd, parent = (*map(int, more), None, None)[:2]
    if parent is not None:
        die_with_parent(parent)
    request = CHILD_REQUEST.validate_json(Path(path).read_bytes())
    set_process_name(request.task)
    join_cgroup(request.procs)
    if notify_fd is not None:
        os.set_inheritable(notify_fd, False)
    code = 0
    with JournalWriter(request.journal, request.run, notify_fd) as journal:
        try:
            with failure_recorded(journal):
                task(body.validate_json(request.body), journal, should_stop)
        except SystemExit as ended:
            if ended.code != 1:  # a code of the task
                raise
            code = 1
        finally:
            # At exit Python restores default handlers: a late signal would make a finished child look killed.
            ignore_stop_signals()
    exit_at_once(code)


@contextmanager
def failure_recorded(journal: RecordWriter) -> Iterator[None]:
    """Write the record of a failure that has a name, and raise `SystemExit` with 1 for it."""
    try:
        yield
    except (PreflightError, MemoryError, RuntimeError) as error:
        failure = error if isinstance(error, PreflightError) else out_of_memory(error)
        if failure is None:
            raise
        payload = {"reason": failure.reason, "message": failure.message, "field": failure.field}
        journal.write("fail", {**payload}, durable=True)
        raise SystemExit(1) from error


def exit_at_once(code: int) -> NoReturn:
    """Exit after the exit handlers, without taking torch's modules apart first, which takes 0.2 s."""
    atexit._run_exitfuncs()
    _flush()
    os._exit(code)


def end_like(code: int) -> NoReturn:
    """End this process as another one ended, with its exit code or, where that is negative, by its signal."""
    _flush()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def out_of_memory(error: Exception) -> OutOfMemory | None:
    """Return `OutOfMemory` for Python's and torch's errors of a failed allocation, None for any other error."""
    text = str(error)
    on_gpu = any(words in text for words in NO_GPU_MEMORY)
    if not (on_gpu or isinstance(error, MemoryError) or any(words in text for words in NO_MEMORY)):
        return None
    first_line = text.strip().partition("\n")[0] or type(error).__name__
    more = "a GPU with more memory" if on_gpu else "give the container more memory"
    return OutOfMemory(f"memory allocation failed ({first_line}); use a smaller batch_size or {more}")


def join_cgroup(procs: Path | None) -> None:
    """Become the out-of-memory killer's first choice, in the cgroup of `procs` if there is one; best effort."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if procs is not None:
        with suppress(OSError):
            procs.write_text(str(os.getpid()))


def set_process_name(name: str) -> None:
    """Set the name that ps and top show."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies; exit at once where it is dead already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
