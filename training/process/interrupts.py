"""Stop signals: which process handles them, and when.

A platform may send them to every process at once (systemd's KillMode=control-group, Heroku). The worker decides what
they mean, and asks its processes. So each process starts with them held back, over fork and exec, and releases them
once its own handling is in place: a training saves and ends, every other process ignores them and ends with its parent.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

Handler = Callable[[int, FrameType | None], None]

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


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
