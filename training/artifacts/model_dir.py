"""The trained model on disk: `model.safetensors` and, last, the `manifest.json` that vouches for it."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue, TypeAdapter, ValidationError

from preflight.errors import ArtifactError
from preflight.files.atomic_files import read_text, sha256_of, silent, staged
from preflight.recognizer.onnx import ONNX
from training.system.digests import HashedChunks

MODEL: Final = "model.safetensors"
MANIFEST: Final = "manifest.json"
REPORT: Final = "report.html"
"""File next to the model, where a report of its training was made."""
MANIFEST_VERSION: Final = 1
ATTEMPTS: Final = 1_000_000_000
"""Upper bound of attempt numbers: one with more digits is invalid, see `worker.state.paths.NUMBER`."""

_OBJECT = TypeAdapter(dict[str, JsonValue])


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model that is wholly on disk."""

    directory: Path
    model_sha256: str


def save(
    directory: Path, model: Iterable[bytes | memoryview], facts: Mapping[str, JsonValue],
    beside: Mapping[str, bytes] | None = None,
) -> Artifact:  # fmt: skip
    """Write chunks of weights, the files `beside` them, and a manifest of `facts` plus each sha256 into `directory`.

    The manifest comes last: where it is, the files it names are whole.

    Raises:
        ArtifactError: the directory cannot be written.
    """
    files = {MODEL: HashedChunks(model), **{name: HashedChunks((content,)) for name, content in (beside or {}).items()}}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        vouching = directory / MANIFEST
        with ExitStack() as stack:
            put = [stack.enter_context(staged(directory / name, chunks)) for name, chunks in files.items()]
            digests = {name: chunks.sha256 for name, chunks in files.items()}
            manifest = encode_manifest({"v": MANIFEST_VERSION, **facts, "sha256": {**digests}})
            vouch = stack.enter_context(staged(vouching, (manifest,)))
            # All are on disk; an earlier model's manifest must not be seen next to the new model.
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


def encode_manifest(manifest: Mapping[str, JsonValue]) -> bytes:
    """Return the content of `manifest.json`."""
    return json.dumps(manifest, indent=2, sort_keys=True).encode() + b"\n"


def read_manifest(directory: Path, alive: Callable[[], None] = silent) -> dict[str, JsonValue] | None:
    """Return the manifest in `directory` if the model next to it is whole, else None. No content raises.

    Symbolic links are not followed. `alive` is called after every block of the model that is hashed.
    """
    manifest = manifest_in(directory)
    match manifest:
        case {"v": 1, "sha256": {"model.safetensors": str(digest)}} if digest == _model_sha256(directory, alive):
            return manifest
    return None


def manifest_in(directory: Path) -> dict[str, JsonValue] | None:
    """Return the manifest in `directory`, whatever else lies there; None where there is none. No content raises."""
    try:
        return None if directory.is_symlink() else _OBJECT.validate_json(read_text(directory / MANIFEST))
    except (OSError, ValidationError, RecursionError):
        return None


def require_files(directory: Path, files: Mapping[str, str]) -> None:
    """Raise `ArtifactError` where one of `files`, name -> sha256, is missing or differs, or another would be loaded."""
    for name, digest in files.items():
        try:
            found = sha256_of(directory / name)
        except OSError as error:
            raise ArtifactError(
                f"{directory / name} cannot be read ({error.strerror or error}); promote its model again", field="model"
            ) from error
        if found != digest:
            raise ArtifactError(
                f"{directory / name} is damaged: its sha256 is {found[:12]}, but {digest[:12]} was promoted; "
                "roll back, or promote a whole model",
                field="model",
            )
    if ONNX not in files and os.path.lexists(directory / ONNX):
        raise ArtifactError(f"{directory / ONNX} was not promoted with its model; remove it", field="model")


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
