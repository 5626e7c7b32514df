"""Worker processes: several workers on one host, each with an equal share of its processors and memory.

The parent forks them, forwards stop requests and replaces those that are killed. Shares are equal, so that one
calibration holds for all of them and a job resumes with its plan in any.
"""

import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import structlog

from preflight.container.cgroups import Files
from preflight.container.resources import Resources
from preflight.errors import InvalidConfig
from training.process.child_main import die_with_parent
from training.process.interrupts import STOP_SIGNALS
from worker.queue.work_horse import describe_exit
from worker.state.signals import FORWARDED, StopRequests

MIN_SHARE_BYTES: Final = 512 << 20
"""Memory in which a job of the model `cnn` just runs (deploy/README.md)."""
STABLE_SECONDS: Final = 60.0
"""Life of a process after which earlier kills no longer count."""
MAX_KILLS: Final = 5
"""Times in a row that one process is replaced after a kill; the next kill ends all."""
FORK_PAUSE: Final = 5.0
"""Seconds before a process that the system did not start is tried again."""
FIRST_PAUSE: Final = 1.0
"""Seconds before a killed process is replaced; doubled at each kill in a row."""


def share_processors(container: Resources, shares: int) -> Sequence[frozenset[int]]:
    """Return equal, disjoint sets of processors; the threads of a core stay together where they can.

    Raises:
        InvalidConfig: the container has too few cores or too little memory for so many shares.
    """
    memory = container.memory_bytes
    if shares > container.cores:
        raise InvalidConfig(
            f"processes is {shares}, but this container has {_cores(container.cores)}; use at most {container.cores}",
            field="processes",
        )
    if shares > 1 and memory // shares < MIN_SHARE_BYTES:
        raise InvalidConfig(
            f"processes is {shares}, but each needs {MIN_SHARE_BYTES >> 20} MiB, and this container has "
            f"{memory >> 20} MiB of memory; use at most {max(1, memory // MIN_SHARE_BYTES)}",
            field="processes",
        )
    return split_processors(container.affinity, shares)


def split_processors(processors: Collection[int], shares: int, root: Path = Path("/")) -> Sequence[frozenset[int]]:
    """Return `shares` sets of equal size; what cannot be divided is left over."""
    files = Files(root)

    def position(number: int) -> tuple[int, int, int]:
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        package, core = (files.integer(topology / name) for name in ("physical_package_id", "core_id"))
        return package or 0, core or 0, number

    ordered = sorted(processors, key=position)
    size = len(ordered) // shares
    return [frozenset(ordered[first : first + size]) for first in range(0, size * shares, size)]


def run_processes(shares: Sequence[frozenset[int]], run: Callable[[], None]) -> None:
    """Call `run` in one process for each set of processors, and return when all have ended.

    A killed process is replaced. One that ends with an error, which it has reported, ends the others.

    Raises:
        SystemExit: a process ended with an error; in the processes themselves, when `run` returns.
    """
    waited = {*STOP_SIGNALS, signal.SIGCHLD}
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup
        waited.remove(signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_BLOCK, {*waited, FORWARDED})
    supervisor = _Supervisor([_Process(share) for share in shares], run, waited)
    code = supervisor.supervise()
    if code:
        raise SystemExit(code)


@dataclass(slots=True)
class _Process:
    """A process that runs, is to be started, or has ended."""

    processors: frozenset[int]
    pid: int | None = None
    start_at: float | None = 0.0
    """Monotonic time of its next start; None: it is not to be started."""
    started_at: float = 0.0
    kills: int = 0
    """Number of kills in a row."""


class _Supervisor:
    def __init__(self, processes: Sequence[_Process], run: Callable[[], None], waited: Collection[int]) -> None:
        self._processes = processes
        self._run = run
        self._waited = waited
        self._stopping = False
        self._requests = StopRequests()
        self._code = 0
        self._log = structlog.get_logger("preflight")

    def supervise(self) -> int:
        """Start, replace and stop processes until none is left; returns the exit code."""
        while True:
            for process in self._processes:
                if process.start_at is not None and process.start_at <= time.monotonic():
                    self._start(process)
            starts = [process.start_at for process in self._processes if process.start_at is not None]
            if not starts and all(process.pid is None for process in self._processes):
                return self._code
            pause = max(0.0, min(starts, default=time.monotonic() + STABLE_SECONDS) - time.monotonic())
            received = signal.sigtimedwait(self._waited, pause)
            if received is not None and received.si_signo in STOP_SIGNALS:
                self._forward(received.si_signo)
            self._reap()

    def _start(self, process: _Process) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._log.warning("fork_retry", message=f"the system starts no process ({error.strerror})")
            process.start_at = time.monotonic() + FORK_PAUSE
            return
        if pid == 0:
            self._run_in_fork(process, parent)
        process.pid, process.start_at, process.started_at = pid, None, time.monotonic()

    def _run_in_fork(self, process: _Process, parent: int) -> NoReturn:
        os.setpgrp()  # Ctrl-C reaches the parent alone, which forwards it
        die_with_parent(parent)
        os.sched_setaffinity(0, process.processors)
        signal.signal(FORWARDED, signal.getsignal(signal.SIGTERM))  # until the worker has its handlers
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*self._waited, FORWARDED})
        with suppress(KeyboardInterrupt):  # stopped before it took a job
            self._run()
        raise SystemExit(0)

    def _forward(self, number: int) -> None:
        """Forward a request; not the first one to workers that are stopping, which take a second one as a kill."""
        before = self._requests.so_far
        if self._requests.count(number) > before and (before or not self._stopping):
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for process in self._processes:
            process.start_at = None
            if process.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, FORWARDED)

    def _reap(self) -> None:
        """Collect the processes that have ended; as PID 1 also those that lost their parent."""
        with suppress(ChildProcessError):  # there are none
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                for process in self._processes:
                    if process.pid == ended[0]:
                        process.pid = None
                        self._end(process, *ended)

    def _end(self, process: _Process, pid: int, status: int) -> None:
        """Replace a process that was killed; end all where that does not help, or it ended with an error."""
        if status == 0:
            return
        if not self._stopping and os.WIFSIGNALED(status) and self._replace(process, pid, status):
            return
        self._code = self._code or max(os.waitstatus_to_exitcode(status), 1)
        if not self._stopping:
            self._log.error(
                "worker_failed",
                pid=pid,
                message=f"a worker process ended: {describe_exit(status)}; the others are stopped",
            )
            self._stop()

    def _replace(self, process: _Process, pid: int, status: int) -> bool:
        """Schedule the next start; returns False after too many kills in a row."""
        process.kills = process.kills + 1 if time.monotonic() - process.started_at < STABLE_SECONDS else 1
        if process.kills > MAX_KILLS:
            return False
        pause = FIRST_PAUSE * 2 ** (process.kills - 1)
        self._log.warning(
            "worker_killed", pid=pid, message=f"a worker process ended: {describe_exit(status)}", replaced_in_s=pause
        )
        process.start_at = time.monotonic() + pause
        return True


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"
