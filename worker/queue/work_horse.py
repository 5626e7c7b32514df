"""The work-horse: a fork of the worker that runs one job or its extras, so that its death affects that job alone."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, NoReturn

import structlog

from preflight.redis.retry import BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS, backoff
from training.process.child import readable
from training.process.child_main import die_with_parent
from training.process.interrupts import held_back, release, set_stop_handler
from worker.state.control import Interrupted, StopSignal

MONITOR_INTERVAL: Final = 2
"""Seconds between two heartbeats of a busy worker to RQ's tools."""
HARD_TIMEOUT: Final = 60
"""Seconds after a job's timeout at which a work-horse that did not stop is killed."""


class WorkHorse:
    """One forked process, from its start to its end."""

    def __init__(
        self, job_id: str, run: Callable[[], None], stop: StopSignal, heartbeat: Callable[[], bool],
        make_room: Callable[[], None], *, timeout: int,
    ) -> None:  # fmt: skip
        """Prepare a fork that calls `run`, for at most `timeout` seconds; -1: for ever.

        Until it ends, `heartbeat` is called and returns whether Redis took it; `stop` counts the worker's signals.
        `make_room` ends processes that can be spared where the system starts no further one.
        """
        self._run = run
        self._stop = stop
        self._heartbeat = heartbeat
        self._make_room = make_room
        self._timeout = timeout
        self._pid: int | None = None
        self._ended: int | None = None
        """Read end of a pipe whose write end only the fork holds, until it dies."""
        self._parent = os.getpid()
        self._log = structlog.get_logger("preflight").bind(job_id=job_id)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process runs."""
        if self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def run(self) -> int | Literal["timeout", "not begun"]:
        """Fork and wait; return the wait status, `timeout` if it was killed, `not begun` if no process could start."""
        try:
            return self._await() if self._fork() else "not begun"
        except Exception:
            self.signal(signal.SIGKILL)  # its job is taken out of the queue and must not continue
            raise
        finally:
            self._close()

    def start(self) -> None:
        """Fork; raises `OSError` where the system starts no process."""
        self._ended, theirs = os.pipe()
        try:
            self._fork_once()
        except OSError:
            self._close()
            raise
        finally:
            os.close(theirs)

    def wait(self, seconds: float) -> int | None:
        """Wait for the end of a started process, at most `seconds`; returns the wait status, None before the end."""
        if self._pid is None or self._ended is None or not readable(seconds, self._ended):
            return None
        status = os.waitpid(self._pid, 0)[1]
        self._close()
        return status

    def _close(self) -> None:
        if self._ended is not None:
            os.close(self._ended)
        self._pid = self._ended = None

    def _fork(self) -> bool:
        """Start, and retry while the system starts no process; return False when stopped meanwhile."""
        pauses = backoff(BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            try:
                self.start()
                return True
            except OSError as error:
                pause = next(pauses)
                detail = (
                    f"the system starts no process ({error.strerror}); "
                    "raise this container's limit on processes or memory"
                )
                self._log.warning("fork_retry", message=detail, retry_in_s=pause)
            self._make_room()
            self._heartbeat()
            if self._stop():
                return False
            time.sleep(pause)

    def _fork_once(self) -> None:
        # Python drops a signal that reaches the fork before its handlers are set up.
        with held_back():
            pid = os.fork()
            if pid == 0:
                self._run_in_fork()
            self._pid = pid
            stopped = self._stop()
        if stopped:
            self.signal(signal.SIGTERM)  # the signal came between the last check and the fork

    def _run_in_fork(self) -> NoReturn:
        """Run the job; die with the worker, as the children die with this process."""
        code = os.EX_SOFTWARE
        try:
            os.setpgrp()
            # Not the worker's handler, which signals other processes. Any number of signals is one request here.
            set_stop_handler(self._stop.note)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker handles Ctrl-C
            release()
            die_with_parent(self._parent)
            self._run()
            code = 0
        except Interrupted:
            code = os.EX_TEMPFAIL
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else code
        except BaseException:
            self._log.exception("supervisor_failed", message="the supervisor of the job failed")
        finally:
            with suppress(AttributeError, OSError, ValueError):  # standard output may be closed
                sys.stdout.flush()
            os._exit(code)

    def _await(self) -> int | Literal["timeout"]:
        began = time.monotonic()
        while (status := self.wait(MONITOR_INTERVAL)) is None:
            in_touch = self._heartbeat()
            late = 0 < self._timeout < time.monotonic() - began - HARD_TIMEOUT
            if late and in_touch:  # without Redis it may be waiting to publish its result
                self.signal(signal.SIGKILL)
                self.wait(HARD_TIMEOUT)
                return "timeout"
        return status


def describe_exit(status: int) -> str:
    """Return a wait status as a clause."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"it was killed by {signal.strsignal(number)} (signal {number})"
    code = os.WEXITSTATUS(status)
    if code == os.EX_TEMPFAIL:
        return "it was stopped while Redis was away"
    return f"it exited with code {code}, which its last log lines explain"
