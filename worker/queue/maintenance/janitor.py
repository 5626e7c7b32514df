"""Delete leftovers of dead processes: old checkpoints, staged models, partial downloads and files.

A file lock shows that a live process uses an entry (`preflight.files.locks`). An entry must also reach a minimum age,
which protects workers whose locks are not visible here, as on a network disk without locks.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from calibration.cache.plan_cache import KINDS
from preflight.files.locks import REMOVED, remove_unlocked, remove_unused
from training.data.builtin.catalog import IDX_DATASETS
from worker.config.settings import Settings
from worker.state.paths import JOBS, STAGING
from worker.state.worker_lock import DIRECTORY as WORKERS

SWEEP_INTERVAL: Final = 600.0
"""Seconds from the end of a sweep to the next."""
STEP_SECONDS: Final = 0.1
"""Seconds of a step; a deletion is not interrupted."""
MIN_AGE_SECONDS: Final = 3600.0
"""Minimum age of staged models, downloads and partial files; nothing resumes them."""
TEMPORARY: Final = re.compile(r"\..+\.[a-z0-9_]{8}", re.ASCII)
"""Names of `preflight.files.locks.locked_temporary`."""


class Janitor:
    """Sweep a worker's directories periodically, in short steps."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sweep = self._entries()
        self._next_sweep = 0.0
        self._log = structlog.get_logger("preflight")

    def due(self) -> bool:
        """Whether a sweep is in progress or due."""
        return time.monotonic() >= self._next_sweep

    def step(self) -> None:
        """Check entries for `STEP_SECONDS`."""
        deadline = time.monotonic() + STEP_SECONDS
        for _ in self._sweep:
            if time.monotonic() >= deadline:
                return
        self._sweep, self._next_sweep = self._entries(), time.monotonic() + SWEEP_INTERVAL

    def _entries(self) -> Iterator[None]:
        """Check all entries, deleting leftovers; yield after each."""
        settings = self._settings
        yield from self._directories(settings.state_dir / JOBS, settings.state_ttl)
        yield from self._directories(settings.artifact_dir / STAGING, MIN_AGE_SECONDS)
        yield from self._directories(settings.data_dir, MIN_AGE_SECONDS, tuple(each.staging for each in IDX_DATASETS))
        written = ("datasets", *(folder for folder, _ in KINDS))
        for folder in (settings.state_dir / WORKERS, *(settings.cache_dir / name for name in written)):
            yield from self._temporaries(folder)

    def _directories(self, root: Path, min_age: float, prefixes: tuple[str, ...] = ("",)) -> Iterator[None]:
        """Delete unused directories in `root` with these prefixes, and those of interrupted deletions."""
        for name in _names(root):
            if name.startswith((REMOVED, *prefixes)):
                age = 0.0 if name.startswith(REMOVED) else min_age
                self._remove(root / name, age, remove_unused, lambda path: path.is_dir())
                yield

    def _temporaries(self, root: Path) -> Iterator[None]:
        for name in _names(root):
            if TEMPORARY.fullmatch(name):
                self._remove(root / name, MIN_AGE_SECONDS, remove_unlocked, lambda path: path.is_file())
                yield

    def _remove(self, path: Path, min_age: float, remove: Callable[[Path], bool], kind: Callable[[Path], bool]) -> None:
        with suppress(OSError):  # it was just deleted
            old = not path.is_symlink() and kind(path) and _newest(path) <= time.time() - min_age
            if old and remove(path):
                self._log.info(
                    "leftover_removed", path=str(path), message=f"removed {path}, which nothing uses any more"
                )


def _names(root: Path) -> list[str]:
    try:
        return [path.name for path in root.iterdir()]
    except OSError:
        return []


def _newest(path: Path, levels: int = 2) -> float:
    """Return the newest mtime of `path` and its entries, `levels` deep; raises `OSError`."""
    newest = path.lstat().st_mtime
    if levels and path.is_dir() and not path.is_symlink():
        return max([newest, *(_newest(each, levels - 1) for each in path.iterdir())])
    return newest
