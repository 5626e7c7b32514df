"""Imports as a chore of a worker, idle or busy: one process at a time, where this machine reaches the upload.

An idle worker begins at once. A busy one begins at idle priority where its job leaves room; else the import waits, as
its state says, until this worker is idle or another one takes it.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from typing import Final

import structlog
from redis import Redis

from preflight.container.resources import detect
from preflight.errors import PreflightError
from training.catalog.catalog import Catalog
from training.process.interrupts import held_back
from worker.config.settings import Settings, service_environment
from worker.imports.records import Imports, ImportState
from worker.imports.uploads import open_uploads, sweep
from worker.queue.imports.room import IDLE, USUAL, may_begin_beside, must_give_way

MODULE: Final = "worker.queue.imports.child"
PAUSE: Final = 5.0
"""Seconds after which an import that this worker cannot run now is looked at again."""
SWEEP_INTERVAL: Final = 600.0
KEPT_SECONDS: Final = 86_400.0
"""Seconds for which an upload is kept after its import was refused."""
STOP_TIMEOUT: Final = 2.0
MAX_PROCESSES: Final = 16


class ImportsChore:
    """Runs the imports of a queue."""

    def __init__(self, connection: Redis, queue: str, settings: Settings, worker: str, *, is_companion: bool) -> None:
        """Look after the imports of `queue` in the name of `worker`; a companion counts as busy at any time."""
        self._is_companion = is_companion
        self._imports = Imports(connection, queue, settings.state_ttl)
        self._settings = settings
        self._worker = worker
        self._process: subprocess.Popen[bytes] | None = None
        self._is_idle_priority = False
        """Whether the process has idle priority."""
        self._open = False
        self._next_look = 0.0
        self._next_sweep = time.monotonic() + SWEEP_INTERVAL
        self._log = structlog.get_logger("preflight")

    @property
    def key(self) -> str:
        """The key that exists while an import is open."""
        return self._imports.key

    def note(self, *, opened: bool) -> None:
        """Note whether `key` exists."""
        self._open = opened

    def due(self) -> bool:
        """Whether there is something to start, to look after or to remove."""
        now = time.monotonic()
        return self._process is not None or (self._open and now >= self._next_look) or now >= self._next_sweep

    def step(self, *, busy: bool = False) -> None:
        """Start the oldest import that this worker can run; end one that takes the processors or memory of a job.

        Raises `redis.exceptions.RedisError`.
        """
        busy = busy or self._is_companion
        if self._is_running():
            if busy and self._process is not None and self._must_end():
                self._process.terminate()
            return
        if time.monotonic() >= self._next_sweep:
            self._sweep()
        if self._open and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + PAUSE
            if not busy or may_begin_beside(detect(shares=self._settings.shares)):
                self._begin(busy=busy)

    def remain(self, seconds: float) -> bool:
        """Wait for an import, at most `seconds`; returns whether one runs."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return self._is_running()

    def stop(self) -> None:
        """End the process; the import continues elsewhere."""
        if self._process is None:
            return
        self._process.terminate()
        if self.remain(STOP_TIMEOUT):
            self._process.kill()
            self._process.wait()

    def _is_running(self) -> bool:
        if self._process is not None and (status := self._process.poll()) is not None:
            self._process = None
            self._next_look = 0.0 if status == 0 else time.monotonic() + PAUSE
            if status not in (0, os.EX_TEMPFAIL):
                self._log.error("import_died", message=f"the process of an import ended early ({status})")
        return self._process is not None

    def _begin(self, *, busy: bool) -> None:
        for state in self._imports.opened():
            if self._imports.is_held(state.import_id) or not self._is_here(state):
                continue
            processes = 1 if busy else min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
            self._is_idle_priority = busy
            priority = IDLE if busy else USUAL
            command = [sys.executable, "-P", "-m", MODULE, state.import_id, self._worker, str(processes), priority]
            try:
                with held_back():
                    self._process = subprocess.Popen(
                        [*command, str(os.getpid())], env=service_environment(self._settings), stdin=subprocess.DEVNULL,
                        start_new_session=True,  # whose priority it may lower
                    )  # fmt: skip
            except OSError as error:
                self._log.warning("import_retry", message=f"no process could be started ({error.strerror})")
            return

    def _must_end(self) -> bool:
        """Whether the process has to end for a job: it takes the job's memory, or has not begun at idle priority.

        Else it continues while the job runs.
        """
        return not self._is_idle_priority or must_give_way(detect(shares=self._settings.shares))

    def _is_here(self, state: ImportState) -> bool:
        """Whether this worker reaches the upload."""
        if not state.stored:
            return True
        try:
            return open_uploads(self._settings).has(state.stored)
        except PreflightError:
            return False
        except Exception as error:  # clients of stores have their own errors
            self._log.warning("uploads_unreachable", message=f"the store of uploads does not answer ({error})")
            return False

    def _sweep(self) -> None:
        """Remove uploads that nobody needs: of imports that have ended, and those that never began."""
        self._next_sweep = time.monotonic() + SWEEP_INTERVAL

        def keep(import_id: str) -> bool:
            state = self._imports.find(import_id)
            is_recent = state is not None and time.time() - state.updated_at < KEPT_SECONDS
            return state is not None and (not state.has_ended or (state.status == "refused" and is_recent))

        try:
            Catalog(self._settings.data_dir).sweep()  # contents that a job has read until now
            gone = sweep(open_uploads(self._settings), keep)
        except PreflightError:
            return
        except OSError as error:
            self._log.warning("uploads_unreachable", message=f"old uploads stay ({error.strerror or error})")
            return
        if gone:
            self._log.info("uploads_removed", message=f"removed {gone} uploads whose imports have ended")
