"""Removes what dead processes left on disk: old jobs' checkpoints, staged models, downloads, half-written files.

What a live process uses is told by its lock (`training.system.locks`), never by a clock. Age comes in addition:
nothing is removed before it, so that workers whose locks cannot be seen from here (a network disk without them) are
safe, too.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from calibration.cache.plan_cache import PLANS, TRIALS
from training.data.datasets import IDX_DATASETS
from training.system.locks import REMOVED, remove_unlocked, remove_unused
from worker.config.settings import Settings
from worker.jobs.paths import JOBS, STAGING
from worker.queue.worker_lock import DIRECTORY as WORKERS

EVERY: Final = 600.0
"""Seconds between the end of a round through all directories and the next one."""
STEP: Final = 0.1
"""Seconds that one step takes; one removal is not interrupted."""
ABANDONED: Final = 3600.0
"""Seconds without a change after which staged models, downloads and half-written files may go: nobody takes them up."""
TEMPORARY: Final = re.compile(r"\..+\.[a-z0-9_]{8}", re.ASCII)
"""What `training.system.locks.locked_temporary` names its files."""


class Janitor:
    """Goes round the directories of a worker again and again, a step at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._round = self._looks()
        self._next = 0.0
        self._log = structlog.get_logger("preflight")

    def due(self) -> bool:
        """Whether a round is under way, or the time for the next one has come."""
        return time.monotonic() >= self._next

    def step(self) -> None:
        """Look at as many places as can be in `STEP` seconds."""
        deadline = time.monotonic() + STEP
        for _ in self._round:
            if time.monotonic() >= deadline:
                return
        self._round, self._next = self._looks(), time.monotonic() + EVERY

    def _looks(self) -> Iterator[None]:
        """Look at one place after the other, and yield after each."""
        settings = self._settings
        yield from self._directories(settings.state_dir / JOBS, settings.state_ttl)
        yield from self._directories(settings.artifact_dir / STAGING, ABANDONED)
        yield from self._directories(settings.data_dir, ABANDONED, tuple(each.staging for each in IDX_DATASETS))
        written = ("datasets", PLANS[0], TRIALS[0])
        for folder in (settings.state_dir / WORKERS, *(settings.cache_dir / name for name in written)):
            yield from self._temporaries(folder)

    def _directories(self, root: Path, longest: float, prefixes: tuple[str, ...] = ("",)) -> Iterator[None]:
        """Remove the unused directories in `root` whose names begin so, and those whose removal was cut off."""
        for name in _names(root):
            if name.startswith((REMOVED, *prefixes)):
                least = 0.0 if name.startswith(REMOVED) else longest
                self._remove(root / name, least, remove_unused, lambda path: path.is_dir())
                yield

    def _temporaries(self, root: Path) -> Iterator[None]:
        for name in _names(root):
            if TEMPORARY.fullmatch(name):
                self._remove(root / name, ABANDONED, remove_unlocked, lambda path: path.is_file())
                yield

    def _remove(self, path: Path, longest: float, remove: Callable[[Path], bool], kind: Callable[[Path], bool]) -> None:
        with suppress(OSError):  # it has just gone
            old = not path.is_symlink() and kind(path) and _newest(path) <= time.time() - longest
            if old and remove(path):
                self._log.info("leftover_removed", path=str(path))


def _names(root: Path) -> list[str]:
    try:
        return [path.name for path in root.iterdir()]
    except OSError:
        return []


def _newest(path: Path, levels: int = 2) -> float:
    """Return when `path`, or what lies in it so many levels deep, was changed last; raises `OSError`."""
    newest = path.lstat().st_mtime
    if levels and path.is_dir() and not path.is_symlink():
        return max([newest, *(_newest(each, levels - 1) for each in path.iterdir())])
    return newest
