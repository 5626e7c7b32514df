"""Publication of a model: an attempt's staged directory takes the place of the job's artifact."""

import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from preflight.errors import ArtifactError
from preflight.files.atomic_files import silent, sync_directory, write_atomically
from preflight.files.locks import exclusive
from training.artifacts.model_dir import MANIFEST, attempt_of, encode_manifest, manifest_in

PUBLISHING: Final = "publishing"
"""Lock file next to the staged models of a job, held while one of them is put in place."""


def publish(staged: Path, directory: Path, alive: Callable[[], None] = silent) -> bool:
    """Put the artifact in `staged` in place as `directory`, unless that is of a higher attempt; return whether it was.

    Where a manifest is seen in `directory`, the model is whole. Both must lie on one file system. A directory that is
    there already is moved aside first, next to `staged`, and then removed. One attempt of a job publishes at a time;
    `alive` is called while another one does.

    Raises:
        ArtifactError: it cannot be moved, or a part of either path beneath their common root is a symbolic link.
    """
    aside = staged.parent / f".replaced-{directory.name}-{uuid.uuid4().hex}"
    try:
        _require_no_symlink(staged, directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(staged.parent / PUBLISHING, alive):
            published = _replaced(staged, directory, aside)
        sync_directory(directory.parent)
        sync_directory(staged.parent)
    except OSError as error:
        raise ArtifactError(
            f"the model could not be moved from {staged} to {directory}: {error.strerror or error}; "
            "free space there or set PREFLIGHT_ARTIFACT_DIR to a writable directory"
        ) from error
    shutil.rmtree(aside, ignore_errors=True)
    return published


def _replaced(staged: Path, directory: Path, aside: Path) -> bool:
    """Replace `directory` by `staged` unless it is of a higher attempt; return whether it did."""
    attempt = attempt_of(staged)
    if attempt_of(directory) > attempt:
        return False
    if os.path.lexists(directory):
        directory.rename(aside)
    try:
        # Checked once more where it cannot change any more: a host that was frozen loses its locks on a network disk.
        if attempt_of(aside) > attempt:
            aside.rename(directory)
            return False
        staged.rename(directory)
    except OSError:
        if os.path.lexists(aside):
            aside.rename(directory)
        raise
    return True


def claim_artifact(
    directory: Path, staged: Path, manifest: Mapping[str, JsonValue], attempt: int, alive: Callable[[], None] = silent
) -> bool:
    """Make `attempt` the one that vouches for the artifact in `directory`, so that none before it replaces it.

    Returns whether the manifest there was still `manifest`; only then anything is written, by way of `staged`, which
    lies on the same file system. A higher attempt that vouches for it already stays.

    Raises:
        ArtifactError: it cannot be written.
    """
    try:
        staged.mkdir(parents=True, exist_ok=True)
        with exclusive(staged.parent / PUBLISHING, alive):
            if manifest_in(directory) != manifest:
                return False
            if attempt_of(directory) >= attempt:
                return True
            write_atomically(staged / MANIFEST, encode_manifest({**manifest, "attempt": attempt}))
            (staged / MANIFEST).rename(directory / MANIFEST)
        sync_directory(directory)
    except OSError as error:
        raise ArtifactError(
            f"the manifest in {directory} could not be written: {error.strerror or error}; "
            "free space there or set PREFLIGHT_ARTIFACT_DIR to a writable directory"
        ) from error
    return True


def _require_no_symlink(staged: Path, directory: Path) -> None:
    """Raise `ArtifactError` for a symbolic link on the way from the common root to either."""
    root = Path(os.path.commonpath((staged, directory)))
    for path in (staged, directory):
        for part in (path, *path.parents):
            if part == root:
                break
            if part.is_symlink():
                raise ArtifactError(f"{part} is a symbolic link and is not followed; remove it")
