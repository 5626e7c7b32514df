"""Keeps two calibrations on one machine apart, as each would measure the other: locks that die with their holder.

One for calibrations of jobs, one for those of idle time, which give way to any of the former.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from preflight.files.locks import is_locked

NAME: Final = "calibration.lock"
IDLE_NAME: Final = "idle-calibration.lock"
IDLE_PATIENCE: Final = 2.0
"""Seconds for which a job waits for a calibration of idle time, which checks five times a second whether to end."""
LOOK_EVERY: Final = 0.05
"""Seconds between two tries."""


@contextmanager
def calibration_lock(directory: Path, tick: Callable[[], None], patience_s: float) -> Iterator[bool]:
    """Hold the lock of `directory`, waiting at most `patience_s` seconds for it; yields whether it was had.

    A lock that is not free in time, or not available, fails no job: the work continues without it.
    `tick` is called at each look while it waits; what that raises (a cancellation) is raised on.
    """
    file = _opened(directory / NAME)
    if file is None:
        yield False
        return
    try:
        alone = _had(file, tick, time.monotonic() + patience_s)
        if alone:
            _await_idle(directory / IDLE_NAME, tick)
        yield alone
    finally:
        os.close(file)  # frees it; the file stays, since another may be waiting for this very one


@contextmanager
def idle_lock(directory: Path) -> Iterator[bool]:
    """Hold the lock of calibrations of idle time; yields whether it was had, and no job calibrates on this machine."""
    file = _opened(directory / IDLE_NAME)
    try:
        yield file is not None and _had(file, _nothing, 0.0) and not job_calibrates(directory)
    finally:
        if file is not None:
            os.close(file)


def job_calibrates(directory: Path) -> bool:
    """Whether a calibration of a job holds the lock of `directory`, or waits for those of idle time to end."""
    return is_locked(directory / NAME)


def _await_idle(path: Path, tick: Callable[[], None]) -> None:
    deadline = time.monotonic() + IDLE_PATIENCE
    while is_locked(path) and time.monotonic() < deadline:
        tick()
        time.sleep(LOOK_EVERY)


def _nothing() -> None:
    """Do nothing between two tries."""


def _opened(path: Path) -> int | None:
    # For reading only, which is enough for a lock: another user's worker may have made the file.
    flags = os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o644)
    except OSError:
        return None


def _had(file: int, tick: Callable[[], None], deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
        except OSError:
            return False  # a file system without locks
        else:
            return True
        tick()
        time.sleep(LOOK_EVERY)
