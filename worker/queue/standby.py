"""Standby: a fork server that a worker keeps while jobs come, so that their children need not import torch.

It is started for the first job, while that is prepared, and released after idle minutes or where memory gets short.
"""

import time
from collections.abc import Callable
from typing import Final

import structlog

from training.process.fork_server.client import ForkServer
from worker.config.settings import Settings
from worker.jobs.fork_server import new_server
from worker.jobs.heartbeat import memory_is_low

IDLE_SECONDS: Final = 600.0
"""Seconds without a job after which the server is released."""
CHECK_INTERVAL: Final = 5.0
"""Seconds between two checks of an idle server."""


class Standby:
    """The fork server of one worker."""

    def __init__(
        self, settings: Settings, *, lender: "Standby | None" = None, is_lent: Callable[[], bool] = lambda: False
    ) -> None:
        """Keep a server where `settings` and memory allow one; a companion uses that of its worker, the `lender`.

        `is_lent`: whether companions use the server, which is not ended then.
        """
        self._settings = settings
        self._is_lent = is_lent
        self._next_check = 0.0
        self._idle_since = time.monotonic()
        self._told: int | None = None
        """Process id of the server that the log has announced."""
        self._log = structlog.get_logger("preflight")
        lent = None if lender is None or lender.server is None else lender.server.lend()
        self.server: ForkServer | None = lent or new_server(settings)
        """Fork server of this worker; None: jobs run without one."""

    def prepare(self) -> None:
        """Start the server for a job unless it runs. Without one, the job's children are fresh interpreters."""
        if self.server is not None and self.server.is_lent and not self.server.running():
            self.server.stop()
            self.server = new_server(self._settings)
        if self.server is None or self.server.running():
            return
        try:
            self.server.start()
        except OSError as error:
            message = f"no process could be started ({error.strerror}); jobs run without it"
            self._log.warning("standby_failed", message=message)

    def prepare_idle(self) -> None:
        """Start the server for a job that may come, unless `step` would release it again."""
        if self.server is not None and not self.server.running() and not self._is_spare():
            self.prepare()

    def _is_spare(self) -> bool:
        return time.monotonic() - self._idle_since >= IDLE_SECONDS or memory_is_low(self._settings.shares)

    def job_ended(self) -> None:
        """Note that the worker is idle from now on."""
        self._idle_since = time.monotonic()
        self._next_check = 0.0
        server = self.server
        if server is not None and not server.is_lent and server.running() and server.pid != self._told:
            self._told = server.pid
            self._log.info(
                "standby_kept", pid=server.pid, memory_mib=server.shared_bytes() >> 20,
                message=f"later jobs share this process; it ends after {IDLE_SECONDS / 60:g} minutes without a job",
            )  # fmt: skip

    def due(self) -> bool:
        """Whether an idle server is to be checked."""
        return self.server is not None and time.monotonic() >= self._next_check

    def step(self) -> None:
        """Release an idle server after `IDLE_SECONDS`, or where memory is short."""
        self._next_check = time.monotonic() + CHECK_INTERVAL
        if self.server is None or self.server.is_lent or self._is_lent() or not self.server.running():
            return
        idle = time.monotonic() - self._idle_since
        if self._is_spare():
            freed = self.server.shared_bytes() >> 20
            self.stop()
            why = f"torch is let go: {'no job came' if idle >= IDLE_SECONDS else 'memory is short'}"
            self._log.info("standby_released", message=why, idle_s=round(idle), memory_mib=freed)

    def make_room(self) -> None:
        """End the server, whose memory is needed, unless companions use it."""
        if not self._is_lent():
            self.stop()

    def stop(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.stop()
