"""Checkpoint files in the directories of a job's attempts, `<job>/<attempt>/`: listed, measured, pruned."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final

_ATTEMPT: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_NAME: Final = re.compile(r"checkpoint-[0-9]{12}\.json", re.ASCII)
_FILES: Final = re.compile(r"\.?checkpoint-[0-9]{12}\.(json|safetensors)(\..*)?", re.ASCII)
"""Names of a checkpoint's files: the two, and what a killed writer left of them."""


def tensors_of(path: Path) -> Path:
    """Return the path of the tensors of the checkpoint described at `path`."""
    return path.with_suffix(".safetensors")


def checkpoint_files(job_dir: Path) -> list[tuple[int, Path]]:
    """Return every checkpoint's JSON, with the number of its attempt."""
    return [
        (number, path)
        for number, place in _attempts(job_dir)
        for path in sorted(_files(place))
        if _NAME.fullmatch(path.name)
    ]


def prune(directory: Path, keep: Collection[Path]) -> None:
    """Remove the checkpoints but `keep` (JSON paths) of the attempt that writes to `directory`, and of those before.

    A later attempt's are left alone: an attempt that wakes up after it was given up must not harm its successor.

    Raises:
        OSError: a directory cannot be read or written.
    """
    kept = {name for path in keep for name in (path, tensors_of(path))}
    for place in _until(directory):
        unneeded = [path for path in _files(place) if path not in kept]
        # The JSON first, so that a half-removed checkpoint counts as none.
        for path in sorted(unneeded, key=lambda path: path.suffix != ".json"):
            path.unlink(missing_ok=True)


def stored_bytes(directory: Path) -> int:
    """Return the bytes of the checkpoints that `prune(directory, ())` would remove."""
    return sum(path.lstat().st_size for place in _until(directory) for path in _files(place))


def _until(directory: Path) -> list[Path]:
    """Return an attempt's directory and those of the attempts before it."""
    if not _ATTEMPT.fullmatch(directory.name):
        return [directory]
    return [place for number, place in _attempts(directory.parent) if number <= int(directory.name)]


def _attempts(job_dir: Path) -> list[tuple[int, Path]]:
    try:
        places = [place for place in job_dir.iterdir() if _ATTEMPT.fullmatch(place.name)]
    except OSError:
        return []
    return sorted((int(place.name), place) for place in places if place.is_dir() and not place.is_symlink())


def _files(place: Path) -> list[Path]:
    try:
        return [path for path in place.iterdir() if _FILES.fullmatch(path.name)]
    except OSError:
        return []
