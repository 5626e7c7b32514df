"""Signal handlers that raise where Python does not lose the exception, and one for a terminal that closes."""

import _weakrefset
import signal
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Final

Handler = Callable[[int, FrameType | None], None]

RETRY_INTERVAL: Final = 0.01
"""Seconds between two looks whether the handler may raise."""
LOSING_FILES: Final = frozenset({"<frozen importlib._bootstrap>", weakref.__file__, _weakrefset.__file__})
"""Files whose functions run where an exception is ignored or replaced: imports, and callbacks of weak references.

An import's own callback ignores it, and before Python 3.12 `__set_name__` of a class makes a RuntimeError of it.
"""
DESTRUCTOR: Final = "__del__"


def raised_safely(handler: Handler) -> Handler:
    """Return a signal handler that calls `handler` once its exception is not lost; it uses SIGALRM to wait.

    Python loses what a signal handler raises during an import, a destructor or a weak reference's callback ("Note on
    Signal Handlers and Exceptions" in the documentation of `signal`).
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if not _loses_exceptions(frame):
            handler(number, frame)
            return
        signal.signal(signal.SIGALRM, lambda _, later: handle(number, later))
        signal.setitimer(signal.ITIMER_REAL, RETRY_INTERVAL)

    return handle


def _loses_exceptions(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename in LOSING_FILES or frame.f_code.co_name == DESTRUCTOR:
            return True
        frame = frame.f_back
    return False


def handle_hangup(handler: Handler) -> None:
    """Install `handler` for SIGHUP, unless SIGHUP is ignored (nohup)."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handler)
