"""Free disk space, checked before a training starts."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from preflight.errors import ArtifactError


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRequirement:
    """Bytes that will be written to a directory, which need not exist yet."""

    what: str
    directory: Path
    bytes: int
    setting: str
    """Name of the setting that moves the directory elsewhere."""


def require_disk_space(needs: Sequence[DiskRequirement]) -> None:
    """Raise `ArtifactError` where a directory cannot be written, or its file system has too little free for all."""
    sharing: dict[int, list[DiskRequirement]] = {}
    for need in needs:
        place = _standing(need.directory)
        if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
            raise ArtifactError(
                f"{need.what} cannot be written to {need.directory}, as {place} is not a writable directory; "
                f"set {need.setting} to one"
            )
        sharing.setdefault(place.stat().st_dev, []).append(need)
    for group in sharing.values():
        needed, first = sum(need.bytes for need in group), group[0]
        free = shutil.disk_usage(_standing(first.directory)).free
        if needed > free:
            raise ArtifactError(
                f"{' and '.join(need.what for need in group)} need {_mib(needed)}, but the file system of "
                f"{first.directory} has {_mib(free)} free; make room there or set "
                f"{' and '.join(need.setting for need in group)} to a larger one"
            )


def _standing(path: Path) -> Path:
    """Return the nearest of a path and its parents that exists."""
    return next(part for part in (path, *path.parents) if os.path.lexists(part))


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"
