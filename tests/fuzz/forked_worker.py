"""A `preflight worker` forked from the test process: it starts in 20 ms instead of a second.

It runs `worker.queue.service.serve`; stages, waits and connection are the test's.
"""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import psutil
import stages
from faulty_redis import Shared, Traps, faulty_redis
from redis import Redis
from rq import Queue

from worker.config.settings import Settings
from worker.queue import service
from worker.queue.worker import PreflightWorker

STARTS_WITHIN: Final = 10.0
PATH_OF_URL: Final = len("unix://")


class ForkedWorker:
    """A worker process forked from the test."""

    def __init__(
        self, settings: Settings, shared: Shared, directory: Path, number: int, *, traps: Traps, scaled: bool
    ) -> None:  # fmt: skip
        """Fork it.

        Args:
            settings: of the service; the Redis must be on a unix socket.
            shared: numbers that all processes and the test share.
            directory: for its log and the notes of its runs.
            number: a name for it.
            traps: faults that wait for it.
            scaled: whether time constants are shortened and jobs do what their seed says.
        """
        self.number = number
        self.traps = traps
        self.log = directory / f"worker-{number}.log"
        self.status: int | None = None
        """Wait status, once it has ended."""
        self.told = 0
        """How often it was told to stop."""
        self.killed = False
        """Whether the test has killed it."""
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            _run_worker(settings, shared, self.traps, self.log, directory / "runs", scaled=scaled)

    def alive(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status is None

    def family(self) -> Sequence[psutil.Process]:
        """Return the processes of worker and supervisor that still exist."""
        if not self.alive():
            return ()
        try:
            worker = psutil.Process(self.pid)
            return (worker, *worker.children(recursive=True))
        except psutil.Error:
            return ()

    def supervisors(self) -> Sequence[psutil.Process]:
        return self.family()[1:]

    def kill(self) -> None:
        """SIGKILL the worker; the kernel ends its supervisor with it."""
        if self.alive():
            self.killed = True
            os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        if self.alive():
            self.told += 1
            os.kill(self.pid, signal.SIGTERM)

    def resume(self) -> None:
        """Resume all suspended processes."""
        for process in self.family():
            with suppress(psutil.Error):
                process.resume()

    def wait(self, seconds: float) -> bool:
        """Wait for the exit; returns whether it came in time."""
        deadline = time.monotonic() + seconds
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        return not self.alive()

    def unexpected_exit(self) -> str | None:
        """Return a description of an unexpected exit."""
        if self.alive() or self.status is None:
            return None
        if os.WIFSIGNALED(self.status):
            number = os.WTERMSIG(self.status)
            killed = number == signal.SIGKILL and (self.killed or self.traps.came("worker") > 0)
            early = number == signal.SIGTERM and self.told > 0  # it came before the worker had its handlers
            return None if killed or early else f"worker {self.number} was ended by signal {number}"
        code = os.WEXITSTATUS(self.status)
        allowed = {0, 1} if self.told > 1 else {0} if self.told else set()
        return None if code in allowed else f"worker {self.number} ended by itself with exit code {code}"

    def log_tail(self, lines: int = 30) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(
            line if len(line) < 700 else f"{line[:150]} ... {line[-450:]}" for line in text.splitlines()[-lines:]
        )

    def end(self) -> None:
        self.kill()
        self.resume()
        if not self.wait(STARTS_WITHIN):
            raise RuntimeError(f"worker {self.number} cannot be killed")


def _run_worker(
    settings: Settings, shared: Shared, traps: Traps, log: Path, runs: Path, *, scaled: bool
) -> NoReturn:  # fmt: skip
    code = 70
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target in (1, 2):
            os.dup2(output, target)
        sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if scaled:
            stages.scale()
            _monitor_in_whole_seconds()
            stages.set_clock_by(shared)
        stages.install(shared, runs, obedient=scaled)
        traps.worker_pid = os.getpid()

        def connect(_: Settings) -> Redis:
            return faulty_redis(settings.redis_url[PATH_OF_URL:], traps)

        setattr(service, "connect", connect)  # noqa: B010 - mypy refuses the plain assignment
        service.serve(settings)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 70
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _monitor_in_whole_seconds() -> None:
    """Keep RQ's own interval: Redis accepts only whole seconds as a time to live."""
    begin = PreflightWorker.__init__

    def begin_so(
        self: PreflightWorker, queue: Queue, connection: Redis, settings: Settings, *, with_scheduler: bool,
        run_companion: Callable[[PreflightWorker], None] | None = None, companion_of: PreflightWorker | None = None,
    ) -> None:  # fmt: skip
        begin(
            self, queue, connection, settings, with_scheduler=with_scheduler, run_companion=run_companion,
            companion_of=companion_of,
        )  # fmt: skip
        self.job_monitoring_interval = 2

    setattr(PreflightWorker, "__init__", begin_so)  # noqa: B010 - mypy refuses the plain assignment
