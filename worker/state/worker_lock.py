"""Worker lock: a file lock that the kernel releases when the worker dies, for workers that start later on this disk."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from preflight.files.locks import locked_temporary, remove_unlocked

DIRECTORY: Final = "workers"
MAX_BYTES: Final = 1024
"""Largest content of a lock file, in bytes."""
UNNAMED: Final = "."
"""Prefix of a lock file that is not locked yet."""


class WorkerLock:
    """The lock of one worker. Its supervisor shares it, so it is free only when both are gone."""

    def __init__(self, state_dir: Path, name: str) -> None:
        """Take the lock; raises `OSError` where the directory cannot be written."""
        self._path = state_dir / DIRECTORY / name
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Renamed once it is locked, so that no worker finds it unlocked and takes this one for dead.
        self._failing = ""
        self._file, unnamed = locked_temporary(self._path)
        unnamed.rename(self._path)

    def touch(self, failing: str = "") -> None:
        """Update the file's time for `worker.cli.diagnosis.health`; on a disk that fails the worker looks dead.

        The file has the parts of the worker that are `failing`.
        """
        with suppress(OSError):
            if failing != self._failing:
                content = failing.encode()[:MAX_BYTES]
                os.pwrite(self._file, content, 0)
                os.ftruncate(self._file, len(content))
                self._failing = failing
            os.utime(self._file)

    def remove_dead(self) -> frozenset[str]:
        """Remove the locks of workers of this disk that have died; returns the workers' names."""
        others = [path for path in self._path.parent.iterdir() if not path.name.startswith(UNNAMED)]
        return frozenset(path.name for path in others if path != self._path and remove_unlocked(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._file)
