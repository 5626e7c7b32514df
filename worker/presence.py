"""That this worker lives, for those that start on the same disk after it: a lock that the kernel frees when it dies."""

import fcntl
import os
from pathlib import Path
from typing import Self

DIRECTORY = "workers"


class Presence:
    """The lock of one worker. Its supervisor shares it, so it is free only when both are gone."""

    def __init__(self, state_dir: Path, name: str) -> None:
        """Take the lock; raises `OSError` where the directory cannot be written."""
        self._path = state_dir / DIRECTORY / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._locked()
        while not self._is_in_place():  # one that started now has taken it for that of a dead worker
            os.close(self._file)
            self._file = self._locked()

    def dead_before(self) -> frozenset[str]:
        """Return the names of the workers of this disk that have died, once: their locks are removed."""
        return frozenset(path.name for path in self._path.parent.iterdir() if path != self._path and _removed(path))

    def _locked(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._path.lstat())
        except FileNotFoundError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def _removed(path: Path) -> bool:
    """Remove the lock of a worker unless it is held."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # another worker that started now was faster
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(file)
    return True
