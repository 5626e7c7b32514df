"""The trained model on disk: `model.safetensors` and, last, the `manifest.json` that vouches for it."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from training.errors import ArtifactError

MODEL: Final = "model.safetensors"
MANIFEST: Final = "manifest.json"
MANIFEST_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model that is wholly on disk."""

    directory: Path
    model_sha256: str


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds either what it held before or all of it, a power cut included."""
    with staged(path, data) as commit:
        commit()


@contextmanager
def staged(path: Path, data: bytes) -> Iterator[Callable[[], None]]:
    """Write `data` beside `path`, synced; yields the function that puts it in place. Left undone, nothing stays."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)

    def commit() -> None:
        temporary.replace(path)
        _sync_directory(path.parent)

    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp's 0600 would hide the file from the group that reads artifacts
        yield commit
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save(directory: Path, model: bytes, facts: Mapping[str, JsonValue]) -> Artifact:
    """Write serialized weights and a manifest of `facts` plus the sha256 into `directory`.

    The manifest comes last: where it is, the model it names is whole.

    Raises:
        ArtifactError: the directory cannot be written.
    """
    digest = hashlib.sha256(model).hexdigest()
    manifest = json.dumps({"v": MANIFEST_VERSION, **facts, "sha256": {MODEL: digest}}, indent=2, sort_keys=True)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        vouching = directory / MANIFEST
        with staged(directory / MODEL, model) as put_model, staged(vouching, manifest.encode() + b"\n") as vouch:
            # Both are on disk; an earlier model's manifest must not be seen beside the new model.
            vouching.unlink(missing_ok=True)
            put_model()
            vouch()
    except OSError as error:
        raise ArtifactError(
            f"the model could not be written to {directory}: {error.strerror}; "
            "free space there or set PREFLIGHT_ARTIFACT_DIR to a writable directory"
        ) from error
    return Artifact(directory=directory, model_sha256=digest)
