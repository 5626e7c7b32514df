"""Stop signals: who receives them when, and handlers that raise where Python does not lose the exception.

A platform may send them to every process at once (systemd's KillMode=control-group, Heroku). The worker decides what
they mean, and asks its processes. So each process starts with them held back, over fork and exec, and releases them
once its own handling is in place: a training saves and ends, every other process ignores them and ends with its parent.
"""

import _weakrefset
import signal
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

Handler = Callable[[int, FrameType | None], None]

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

RETRY_INTERVAL: Final = 0.01
"""Seconds between two looks whether the handler may raise."""
LOSING_FILES: Final = frozenset({"<frozen importlib._bootstrap>", weakref.__file__, _weakrefset.__file__})
"""Files whose functions run where an exception is ignored or replaced: imports, and callbacks of weak references.

An import's own callback ignores it, and before Python 3.12 `__set_name__` of a class makes a RuntimeError of it.
"""
DESTRUCTOR: Final = "__del__"


@contextmanager
def held_back() -> Iterator[None]:
    """Block the stop signals in this thread: a process started meanwhile begins with them blocked, see `release`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def held_back_from_workers() -> Iterator[None]:
    """Block the stop signals as `held_back`, for processes that `multiprocessing` starts."""
    from multiprocessing import resource_tracker  # slow, and the command line imports this module

    resource_tracker.ensure_running()  # started later, it would unblock them in this thread (Python before 3.13)
    with held_back():
        yield


def release() -> None:
    """Unblock the stop signals in this thread; one that came meanwhile is handled now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def set_stop_handler(handler: Handler) -> None:
    """Install `handler` for the stop signals; SIGHUP stays ignored where it was (nohup)."""
    for number in STOP_SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def ignore_stop_signals() -> None:
    """Ignore the stop signals: another process decides when this one ends."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def raised_safely(handler: Handler) -> Handler:
    """Return a signal handler that calls `handler` once what it raises is not lost; it uses SIGALRM to wait.

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
