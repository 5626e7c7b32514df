"""Pending extras as a chore: one work-horse at a time finishes the extras of jobs on this disk.

They run while the next job runs, where a core and memory are free, at idle priority; else that job waits for them.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from preflight.container.resources import detect
from worker.config.settings import Settings
from worker.jobs.stages.pending_extras import pending_attempts
from worker.queue.maintenance.extras_room import may_run_beside
from worker.queue.work_horse import WorkHorse, describe_exit
from worker.state.paths import JOBS

SCAN_INTERVAL: Final = 60.0
"""Seconds between two searches for extras that other workers left; those that failed are tried again then."""
STOP_TIMEOUT: Final = 2.0
"""Seconds that the work-horse gets to keep the extras that are left and to publish its events."""


class PendingExtrasChore:
    """Runs the extras of jobs that have ended, each job's in a work-horse."""

    def __init__(self, settings: Settings, fork: Callable[[str, bool], WorkHorse | None]) -> None:
        """Start work-horses by `fork`, from a job's id and whether the next job may run meanwhile; None: it cannot."""
        self._shares = settings.shares
        self._jobs = settings.state_dir / JOBS
        self._fork = fork
        self._waiting: deque[str] = deque()
        self._horse: WorkHorse | None = None
        self._beside = False
        """Whether the next job need not wait for the work-horse."""
        self._next_scan = 0.0

    def notice(self, job_id: str) -> None:
        """Do the extras of a job that has just ended next, if it has any."""
        if any(pending_attempts(self._jobs / job_id)):
            self._waiting.appendleft(job_id)

    def due(self) -> bool:
        """Whether there is something to start or to end."""
        return self._horse is not None or bool(self._waiting) or time.monotonic() >= self._next_scan

    def step(self) -> None:
        """Start the next work-horse once the last one has ended."""
        if self.join(0):
            return
        if not self._waiting and time.monotonic() >= self._next_scan:
            self._waiting.extend(self._left_on_disk())
            self._next_scan = time.monotonic() + SCAN_INTERVAL
        if self._waiting:
            self._beside = may_run_beside(detect(shares=self._shares))
            self._horse = self._fork(self._waiting[0], self._beside)
            if self._horse is not None:
                self._waiting.popleft()

    def _left_on_disk(self) -> list[str]:
        try:
            return sorted(path.name for path in self._jobs.iterdir() if any(pending_attempts(path)))
        except OSError:
            return []

    def remain(self, seconds: float) -> bool:
        """Wait for the work-horse, at most `seconds`; returns whether extras run or wait to."""
        return self.join(seconds) or bool(self._waiting)

    def holds_back(self, seconds: float) -> bool:
        """Wait at most `seconds` for extras that hold back the next job; return whether they still run."""
        return self.join(0 if self._beside else seconds) and not self._beside

    def join(self, seconds: float) -> bool:
        """Wait for the work-horse, at most `seconds`; returns whether it still runs."""
        if self._horse is not None and (status := self._horse.wait(seconds)) is not None:
            self._horse = None
            if os.waitstatus_to_exitcode(status) not in (0, os.EX_TEMPFAIL):
                structlog.get_logger("preflight").error(
                    "extras_died", message=f"the process of what follows a result ended early: {describe_exit(status)}"
                )
        return self._horse is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the work-horse, if one runs."""
        if self._horse is not None:
            self._horse.signal(number)

    def stop(self) -> None:
        """End the work-horse; what it has not done stays on disk."""
        self.signal(signal.SIGTERM)
        if self.join(STOP_TIMEOUT):
            self.signal(signal.SIGKILL)
            self.join(STOP_TIMEOUT)
