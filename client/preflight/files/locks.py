"""Kernel locks (flock) that say whether a process still uses a directory or writes a file; needs no torch.

The kernel frees a lock when its holder dies, so neither a clock nor a process id decides who lives. Containers that
share a volume on one kernel see each other's locks; over NFS it depends on the mount (docs/how-to/runbook.md, "Disk").
Without locks on a file system, work continues, and nothing is removed, as nothing is known to be unused.
"""

import fcntl
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

LOCK: Final = "lock"
"""Name of the lock file in a directory that processes use."""
REMOVED: Final = "~removed-"
"""Prefix of a directory's name while it is being removed; no job and no data set can have such a name."""
LOOK_EVERY: Final = 0.01
"""Seconds between two tries to lock."""
PATIENCE: Final = 5.0
"""Longest wait for a directory that another process is removing, in seconds; renaming it takes microseconds."""
FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Held:
    """A lock that is held until it is closed, at the latest until this process ends."""

    def __init__(self, file: int) -> None:
        self._file: int | None = file

    def close(self) -> None:
        """Free the lock; may be called again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def use(directory: Path) -> Held:
    """Make `directory` where it is missing, and mark it as used by this process; others may use it, too.

    Raises:
        OSError: it cannot be written, or another process has been removing it for `PATIENCE` seconds.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = os.open(directory / LOCK, FLAGS, 0o644)
        except (FileNotFoundError, FileExistsError):  # removed meanwhile, also under mkdir's own eyes
            if time.monotonic() > deadline:
                raise
            continue
        try:
            if _locked(file, fcntl.LOCK_SH) and _is_at(file, directory / LOCK):
                return Held(file)
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        if time.monotonic() > deadline:
            raise BlockingIOError(f"{directory} is being removed by another process")
        time.sleep(LOOK_EVERY)


def share(path: Path) -> Held | None:
    """Mark the file at `path` as used, so that `remove_unlocked` leaves it; None where it is not there."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    if _locked(file, fcntl.LOCK_SH) and _is_at(file, path):
        return Held(file)
    os.close(file)
    return None


def remove_unused(directory: Path) -> bool:
    """Remove `directory` unless a process uses it; returns whether it went. It is renamed first, so it goes at once."""
    try:
        file = os.open(directory / LOCK, FLAGS, 0o644)
    except OSError:
        return False
    gone = directory.parent / f"{REMOVED}{uuid.uuid4().hex}"
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(file, directory / LOCK):
            return False
        directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    except OSError:
        return False  # used, on a file system without locks, or not ours to remove
    finally:
        os.close(file)
    return True


def locked_temporary(path: Path) -> tuple[int, Path]:
    """Make a file next to `path` that is locked as long as its descriptor is open; return descriptor and path.

    Its name is a dot, that of `path`, a dot and eight characters.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        file, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        if _locked(file, fcntl.LOCK_EX) and _is_at(file, Path(name)):
            return file, Path(name)
        os.close(file)  # somebody took it for a leftover before it was locked


def remove_unlocked(path: Path) -> bool:
    """Remove the file at `path` unless a process holds its lock; returns whether it went."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_at(file, path):
            return False
        path.unlink()
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of the file at `path`; False on a file system without locks."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        return not _locked(file, fcntl.LOCK_SH)
    finally:
        os.close(file)


@contextmanager
def exclusive(path: Path, alive: Callable[[], None]) -> Iterator[None]:
    """Hold the lock at `path` alone, and remove the file at the end. `alive` is called while another process holds it.

    Raises:
        OSError: the file cannot be made.
    """
    while True:
        file = os.open(path, FLAGS, 0o644)
        try:
            while not _locked(file, fcntl.LOCK_EX):
                alive()
                time.sleep(LOOK_EVERY)
            if _is_at(file, path):
                break
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the process that held it has removed the file
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def _locked(file: int, kind: int) -> bool:
    """Try to lock; returns whether no other process holds it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _is_at(file: int, path: Path) -> bool:
    """Whether the open `file` still has the name `path`."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(file), path.lstat())
    return False
