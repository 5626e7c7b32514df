"""Stop requests of a worker: which signals mean one; no slow imports, as the command line needs it.

One request may come as several signals: systemd and Heroku send SIGTERM to every process, and a process manager or the
parent of several workers forwards its own. The second request kills.
"""

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from training.process.interrupts import set_stop_handler

FORWARDED: Final = signal.SIGUSR1
"""Signal for a stop request from the parent of several workers, each of which may have received the request itself."""
SAME_REQUEST_SECONDS: Final = 0.1
"""Seconds between two signals within which they are one request: the platform's and a process manager's, say."""


class StopRequests:
    """Counts the stop requests that reached this process as signals."""

    def __init__(self) -> None:
        self._received = self._forwarded = 0
        self._last = 0.0

    def count(self, number: int) -> int:
        """Note a signal and return the number of requests so far."""
        now = time.monotonic()
        if number == FORWARDED:
            self._forwarded += 1
        elif number == signal.SIGHUP and self.so_far:
            pass  # shell and kernel may each send one when a terminal closes
        elif not self._received or now - self._last >= SAME_REQUEST_SECONDS:
            self._received += 1
            self._last = now
        return self.so_far

    @property
    def so_far(self) -> int:
        """The number of requests: each may have been received, forwarded, or both."""
        return max(self._received, self._forwarded)


def handle_stop_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    """Install `handler` for the stop signals and a forwarded request; not for SIGHUP where it is ignored (nohup)."""
    set_stop_handler(handler)
    signal.signal(FORWARDED, handler)
