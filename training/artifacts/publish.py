"""The trained model on disk: `model.safetensors` and, last, the `manifest.json` that vouches for it."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter, ValidationError

from training.errors import ArtifactError
from training.system.atomic_files import read_text, sha256_of, silent, staged, sync_directory, write_atomically
from training.system.locks import exclusive

MODEL: Final = "model.safetensors"
MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
PUBLISHING: Final = "publishing"
"""Lock file beside the staged models of a job, held while one of them is put in place."""
ATTEMPTS: Final = 1_000_000_000
"""Numbers of attempts are below this: more digits are none, see `worker.jobs.paths.NUMBER`."""

_OBJECT = TypeAdapter(dict[str, JsonValue])


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model that is wholly on disk."""

    directory: Path
    model_sha256: str


def save(
    directory: Path, model: bytes, facts: Mapping[str, JsonValue], beside: Mapping[str, bytes] | None = None
) -> Artifact:
    """Write serialized weights, the files `beside` them, and a manifest of `facts` plus each sha256 into `directory`.

    The manifest comes last: where it is, the files it names are whole.

    Raises:
        ArtifactError: the directory cannot be written.
    """
    files = {MODEL: model, **(beside or {})}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    manifest = _encoded({"v": MANIFEST_VERSION, **facts, "sha256": {**digests}})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        vouching = directory / MANIFEST
        with ExitStack() as stack:
            put = [stack.enter_context(staged(directory / name, (content,))) for name, content in files.items()]
            vouch = stack.enter_context(staged(vouching, (manifest,)))
            # All are on disk; an earlier model's manifest must not be seen beside the new model.
            vouching.unlink(missing_ok=True)
            for commit in put:
                commit()
            vouch()
    except OSError as error:
        raise ArtifactError(
            f"the model could not be written to {directory}: {error.strerror}; "
            "free space there or set PREFLIGHT_ARTIFACT_DIR to a writable directory"
        ) from error
    return Artifact(directory=directory, model_sha256=digests[MODEL])


def publish(staged: Path, directory: Path, alive: Callable[[], None] = silent) -> bool:
    """Put the artifact in `staged` in place as `directory`, unless that of a higher attempt is there; returns whether.

    Where a manifest is seen in `directory`, the model is whole. Both must lie on one file system. A directory that is
    there already is moved aside first, beside `staged`, and then removed. One attempt of a job publishes at a time;
    `alive` is called while another one does.

    Raises:
        ArtifactError: it cannot be moved, or a part of either path beneath their common root is a symbolic link.
    """
    aside = staged.parent / f".replaced-{directory.name}-{uuid.uuid4().hex}"
    try:
        _see_that_no_link(staged, directory)
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
    """Replace `directory` by `staged` unless it is of a higher attempt; returns whether."""
    attempt = attempt_of(staged)
    if attempt_of(directory) > attempt:
        return False
    if os.path.lexists(directory):
        directory.rename(aside)
    try:
        # Looked at once more where it cannot change any more: a host that was frozen loses its locks on a network disk.
        if attempt_of(aside) > attempt:
            aside.rename(directory)
            return False
        staged.rename(directory)
    except OSError:
        if os.path.lexists(aside):
            aside.rename(directory)
        raise
    return True


def adopt(
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
            write_atomically(staged / MANIFEST, _encoded({**manifest, "attempt": attempt}))
            (staged / MANIFEST).rename(directory / MANIFEST)
        sync_directory(directory)
    except OSError as error:
        raise ArtifactError(
            f"the manifest in {directory} could not be written: {error.strerror or error}; "
            "free space there or set PREFLIGHT_ARTIFACT_DIR to a writable directory"
        ) from error
    return True


def _encoded(manifest: Mapping[str, JsonValue]) -> bytes:
    return json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"


def _see_that_no_link(staged: Path, directory: Path) -> None:
    """Raise `ArtifactError` for a symbolic link on the way from the common root to either."""
    root = Path(os.path.commonpath((staged, directory)))
    for path in (staged, directory):
        for part in (path, *path.parents):
            if part == root:
                break
            if part.is_symlink():
                raise ArtifactError(f"{part} is a symbolic link and is not followed; remove it")


def read_manifest(directory: Path, alive: Callable[[], None] = silent) -> dict[str, JsonValue] | None:
    """Return the manifest in `directory` if the model beside it is whole, else None. No content raises.

    Symbolic links are not followed. `alive` is called after every block of the model that is hashed.
    """
    manifest = manifest_in(directory)
    match manifest:
        case {"v": 1, "sha256": {"model.safetensors": str(digest)}} if digest == _model_sha256(directory, alive):
            return manifest
    return None


def manifest_in(directory: Path) -> dict[str, JsonValue] | None:
    """Return the manifest in `directory`, whatever lies beside it; None where there is none. No content raises."""
    try:
        return None if directory.is_symlink() else _OBJECT.validate_json(read_text(directory / MANIFEST))
    except (OSError, ValidationError, RecursionError):
        return None


def attempt_of(directory: Path) -> int:
    """Return the number of the attempt that vouches for the artifact in `directory`; 0 where none does."""
    match manifest_in(directory):
        case {"attempt": int(attempt)} if 0 < attempt < ATTEMPTS:
            return attempt
    return 0


def _model_sha256(directory: Path, alive: Callable[[], None]) -> str | None:
    try:
        return sha256_of(directory / MODEL, alive)
    except OSError:
        return None
