"""Idle calibration as a chore: while the queue is empty, a process goes on with unfinished searches, one at a time.

It ends at once when a job comes, when the worker stops or is suspended, and where memory gets short.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from calibration.cache.unfinished import MAX_TRIES, UnfinishedSearch, UnfinishedSearches
from worker.config.settings import Settings
from worker.jobs.heartbeat import memory_is_low
from worker.queue.maintenance.idle_search import NOT_NOW, IdleSearch
from worker.queue.work_horse import WorkHorse, describe_exit
from worker.state.control import StopSignal

CHECK_INTERVAL: Final = 1.0
"""Seconds between two looks at the process, or for a search to go on with."""
IDLE_SECONDS: Final = 2.0
"""Seconds without a job before a search goes on: between jobs that follow each other nothing is measured."""
PAUSE_SECONDS: Final = 60.0
"""Seconds before a search that was disturbed or died is tried again."""
LONG_PAUSE_SECONDS: Final = 900.0
"""Seconds before one that cannot go on here is: it belongs to another container, the disk is full, memory is taken."""
END_TIMEOUT: Final = 0.2
"""Seconds for which a job waits for the end of killed processes, whose memory it may need."""


class IdleCalibration:
    """The unfinished searches of one worker, one at a time."""

    def __init__(
        self, settings: Settings, stop: StopSignal, fork: Callable[[Callable[[], None]], WorkHorse | None]
    ) -> None:
        """`fork` starts a process that calls what it is given; None: it cannot now."""
        self._settings = settings
        self._stop = stop
        self._fork = fork
        self._searches = UnfinishedSearches(settings.cache_dir)
        self._horse: WorkHorse | None = None
        self._search: UnfinishedSearch | None = None
        """That goes on."""
        self._directory: Path | None = None
        self._excused: UnfinishedSearch | None = None
        """Was stopped; the disk is not told while a job begins."""
        self._not_before: dict[str, float] = {}
        """Key of a search -> monotonic time of its next try."""
        self._quiet_since: float | None = None
        self._next_check = 0.0
        self._began = 0.0
        self._log = structlog.get_logger("preflight")

    @property
    def workload(self) -> str | None:
        """What is being measured; None: nothing."""
        return None if self._search is None else self._search.workload

    def due(self) -> bool:
        """Whether there may be something to start or to end."""
        return self._settings.idle_calibration == "on" and time.monotonic() >= self._next_check

    def has_work(self) -> bool:
        """Whether a search goes on, or waits to."""
        return self._horse is not None or bool(self._searches.waiting())

    def step(self, quiet: bool) -> None:
        """Start, watch or end a search; `quiet`: this worker has nothing else to do."""
        self._next_check = time.monotonic() + CHECK_INTERVAL
        if self._excused is not None:
            self._searches.excuse(self._excused)
            self._excused = None
        if not quiet:
            self.stop("the worker is not idle")
        elif memory_is_low(self._settings.processes):
            self.stop("memory is short")
            self._quiet_since = time.monotonic() + PAUSE_SECONDS
        elif self._horse is not None:
            self._join()
        elif self._quiet_since is None:
            self._quiet_since = time.monotonic()
        elif time.monotonic() - self._quiet_since >= IDLE_SECONDS:
            self._start_next()

    def stop(self, why: str = "a job came") -> None:
        """Kill the process and its children, and wait until they are gone, at most `END_TIMEOUT`."""
        self._quiet_since = None
        horse, search = self._horse, self._search
        if horse is None or search is None:
            return
        began = time.monotonic()
        gone = horse.kill_tree(END_TIMEOUT)
        took = time.monotonic() - began
        self._searches.end_attempts(search)
        self._excused = search
        del self._not_before[search.key]
        self._clear()
        self._log.info(
            "idle_calibration_stopped", measured_s=round(began - self._began, 1), ended_in_s=round(took, 3),
            message=f"the search for {search.workload} goes on later: {why}",
            **({} if gone else {"still_ending": True}),
        )  # fmt: skip

    def _start_next(self) -> None:
        now = time.monotonic()
        waiting = [each for each in self._searches.waiting() if self._not_before.get(each.key, 0.0) <= now]
        if not waiting:
            return
        search = waiting[0]
        self._not_before[search.key] = now + PAUSE_SECONDS
        try:
            self._directory = Path(tempfile.mkdtemp(prefix="preflight-idle-"))
        except OSError as error:
            self._log.warning("idle_calibration_failed", message=f"its files cannot be written: {error.strerror}")
            return
        self._horse = self._fork(IdleSearch(self._settings, search, self._directory, self._stop).run)
        self._search, self._began = search, now
        if self._horse is None:
            self._clear()

    def _join(self) -> None:
        """Note the end of the process, if it has ended."""
        if self._horse is None or self._search is None or (status := self._horse.wait(0)) is None:
            return
        search = self._search
        self._clear()
        code = os.waitstatus_to_exitcode(status)
        pause = LONG_PAUSE_SECONDS if code == NOT_NOW else PAUSE_SECONDS
        self._not_before[search.key] = time.monotonic() + pause
        if code == os.EX_TEMPFAIL:
            self._excused = search
        elif code not in (0, NOT_NOW):
            self._log.warning(
                "idle_calibration_died", dataset=search.spec.dataset, model=search.spec.model,
                message=f"the search for {search.workload} died: {describe_exit(status)}; "
                f"try {search.tries + 1} of {MAX_TRIES}",
            )  # fmt: skip

    def _clear(self) -> None:
        self._horse = self._search = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
