"""That this worker lives, for those that start on the same disk after it: a lock that the kernel frees when it dies."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from training.system.locks import locked_temporary, remove_unlocked

DIRECTORY: Final = "workers"
UNNAMED: Final = "."
"""What a lock begins with that has no name yet."""


class Presence:
    """The lock of one worker. Its supervisor shares it, so it is free only when both are gone."""

    def __init__(self, state_dir: Path, name: str) -> None:
        """Take the lock; raises `OSError` where the directory cannot be written."""
        self._path = state_dir / DIRECTORY / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # It gets its name once it is locked, so that nobody finds it free before and takes it for a dead worker's.
        self._file, unnamed = locked_temporary(self._path)
        unnamed.rename(self._path)

    def beat(self) -> None:
        """Give a sign of life; see `worker.ops.health`. A disk that does not take it makes the worker look dead."""
        with suppress(OSError):
            os.utime(self._file)

    def dead_before(self) -> frozenset[str]:
        """Return the names of the workers of this disk that have died, once: their locks are removed."""
        others = [path for path in self._path.parent.iterdir() if not path.name.startswith(UNNAMED)]
        return frozenset(path.name for path in others if path != self._path and remove_unlocked(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)
