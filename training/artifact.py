"""The trained model on disk: `model.safetensors` and, last, the `manifest.json` that vouches for it."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter, ValidationError

from training.errors import ArtifactError
from training.files import read_text, sha256_of, staged, sync_directory

MODEL: Final = "model.safetensors"
MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1

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
    manifest = json.dumps({"v": MANIFEST_VERSION, **facts, "sha256": digests}, indent=2, sort_keys=True)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        vouching = directory / MANIFEST
        with ExitStack() as stack:
            put = [stack.enter_context(staged(directory / name, (content,))) for name, content in files.items()]
            vouch = stack.enter_context(staged(vouching, (manifest.encode(), b"\n")))
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


def publish(staged: Path, directory: Path) -> None:
    """Put the artifact in `staged` in place as `directory`; where a manifest is seen there, the model is whole.

    Both must lie on one file system. A directory that is there already is moved aside first, beside `staged`, and
    then removed.

    Raises:
        ArtifactError: it cannot be moved, or a part of either path beneath their common root is a symbolic link.
    """
    aside = staged.parent / f".replaced-{directory.name}-{uuid.uuid4().hex}"
    try:
        _see_that_no_link(staged, directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(directory):
            directory.rename(aside)
        try:
            staged.rename(directory)
        except OSError:
            if os.path.lexists(aside):
                aside.rename(directory)
            raise
        sync_directory(directory.parent)
        sync_directory(staged.parent)
    except OSError as error:
        raise ArtifactError(
            f"the model could not be moved from {staged} to {directory}: {error.strerror or error}; "
            "free space there or set PREFLIGHT_ARTIFACT_DIR to a writable directory"
        ) from error
    shutil.rmtree(aside, ignore_errors=True)


def _see_that_no_link(staged: Path, directory: Path) -> None:
    """Raise `ArtifactError` for a symbolic link on the way from the common root to either."""
    root = Path(os.path.commonpath((staged, directory)))
    for path in (staged, directory):
        for part in (path, *path.parents):
            if part == root:
                break
            if part.is_symlink():
                raise ArtifactError(f"{part} is a symbolic link and is not followed; remove it")


def read_manifest(directory: Path) -> dict[str, JsonValue] | None:
    """Return the manifest in `directory` if the model beside it is whole, else None. No content raises.

    Symbolic links are not followed.
    """
    try:
        if directory.is_symlink():
            return None
        manifest = _OBJECT.validate_json(read_text(directory / MANIFEST))
        match manifest:
            case {"v": 1, "sha256": {"model.safetensors": str(digest)}} if digest == sha256_of(directory / MODEL):
                return manifest
    except (OSError, ValidationError, RecursionError):
        return None
    return None
