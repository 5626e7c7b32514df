"""Keeps two calibrations on one machine apart, as each would measure the other: a lock that dies with its holder."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

NAME: Final = "calibration.lock"
LOOK_EVERY: Final = 0.05
"""Seconds between two tries."""


@contextmanager
def calibration_lock(directory: Path, tick: Callable[[], None], patience_s: float) -> Iterator[bool]:
    """Hold the lock of `directory`, waiting at most `patience_s` seconds for it; yields whether it was acquired.

    A lock that is not free in time, or not available, fails no job: the work continues without it.
    `tick` is called at each look while it waits; its errors (a cancellation) are passed on.
    """
    file = _opened(directory / NAME)
    if file is None:
        yield False
        return
    try:
        yield _had(file, tick, time.monotonic() + patience_s)
    finally:
        os.close(file)  # frees it; the file stays, since another may be waiting for this very one


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
