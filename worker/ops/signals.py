"""SIGHUP handling; no slow imports, as the command line needs it."""

import signal
from collections.abc import Callable
from types import FrameType


def handle_hangup(handler: Callable[[int, FrameType | None], None]) -> None:
    """Install `handler` for SIGHUP, unless SIGHUP is ignored (nohup)."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handler)
