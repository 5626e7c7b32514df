"""Upload a model, its manifest last.

Each file is read back and compared. The old manifest is deleted before the first file, and the new one, with the
sha256 of every file, is written after the last: a reader that sees a manifest sees a complete model.

Before every write, the upload ends where a later attempt has uploaded its model: this process may have been frozen.
No lock covers the time between this check and the write.
"""

import hashlib
import io
import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from pydantic import JsonValue, TypeAdapter, ValidationError

from preflight.config.secrets import redact_urls
from preflight.errors import ArtifactError
from preflight.files.atomic_files import LARGEST_TEXT, open_regular, sha256_of
from preflight.files.journal import RecordWriter
from preflight.object_store import FileSystem
from training.artifacts.model_dir import MANIFEST, read_manifest
from worker.features.exporters.retry import retry_export

PART_SIZE: Final = 8 << 20
"""Bytes per request; larger files are uploaded in parts."""

_OBJECT = TypeAdapter(dict[str, JsonValue])


class ChecksumMismatch(Exception):
    """A file read back differs from the one written."""


def upload_model(
    store: FileSystem, target: str, artifact: Path, report: RecordWriter, *, make_directories: bool
) -> None:
    """Upload the files of `artifact` to `target`.

    Raises:
        ArtifactError: the model is incomplete, or a permanent error of the store.
    """
    manifest = read_manifest(artifact)
    if manifest is None:
        raise ArtifactError(f"{artifact} holds no whole model: its manifest or its weights are missing or damaged")
    paths = sorted(path for path in artifact.rglob("*") if path.is_file() and not path.is_symlink())
    files = {str(path.relative_to(artifact)): path for path in paths if path.name != MANIFEST}
    digests = {name: sha256_of(path) for name, path in files.items()}
    uploaded = json.dumps({**manifest, "sha256": digests}, indent=2, sort_keys=True).encode() + b"\n"

    def write(action: Callable[[], None]) -> None:
        retry_export(partial(_require_latest, store, target, manifest), report)
        retry_export(action, report)

    def put(name: str, content: Callable[[], BinaryIO], digest: str) -> None:
        write(partial(_put, store, f"{target}/{name}", content, digest, make_directories))

    write(partial(_remove, store, f"{target}/{MANIFEST}"))
    for name, path in files.items():
        put(name, partial(open_regular, path), digests[name])
    put(MANIFEST, partial(io.BytesIO, uploaded), hashlib.sha256(uploaded).hexdigest())


def probe_store(store: FileSystem, root: str, report: RecordWriter, *, make_directories: bool) -> None:
    """Check that a store takes files in `root`, by a file that is read back and deleted.

    Raises:
        ArtifactError: a permanent error of the store.
    """
    path = f"{root}/preflight-{uuid.uuid4().hex}"
    digest = hashlib.sha256(b"preflight").hexdigest()
    retry_export(partial(_put, store, path, partial(io.BytesIO, b"preflight"), digest, make_directories), report)
    retry_export(partial(_remove, store, path), report)


def _require_latest(store: FileSystem, target: str, ours: Mapping[str, JsonValue]) -> None:
    """Raise `ArtifactError` where the manifest in `target` is of a later attempt of the job.

    A job run again after its records expired counts attempts from 1 again; the time of its model is later.
    """
    try:
        with store.open(f"{target}/{MANIFEST}", "rb", block_size=PART_SIZE) as file:
            theirs = _OBJECT.validate_json(file.read(LARGEST_TEXT))
    except (FileNotFoundError, PermissionError):  # S3 gives the latter for a missing file without list permission
        return
    except ValidationError:  # damaged
        return
    match ours, theirs:
        case (
            {"job_id": str(job_id), "attempt": int(own), "created_at": str(made)},
            {"job_id": str(same), "attempt": int(later), "created_at": str(then)},
        ) if (same, later > own, then >= made) == (job_id, True, True):
            raise ArtifactError(
                f"{redact_urls(target)} holds the model of attempt {later}, which is later than {own} and is kept"
            )


def _remove(store: FileSystem, path: str) -> None:
    with suppress(FileNotFoundError):
        store.rm_file(path)


def _put(store: FileSystem, path: str, content: Callable[[], BinaryIO], digest: str, make_directories: bool) -> None:
    """Write a file and read it back; raises `ChecksumMismatch` and exceptions of the store."""
    if make_directories:
        store.makedirs(path.rpartition("/")[0], exist_ok=True)
    with content() as source, store.open(path, "wb", block_size=PART_SIZE) as target:
        shutil.copyfileobj(source, target, PART_SIZE)
    read = hashlib.sha256()
    with store.open(path, "rb", block_size=PART_SIZE) as back:
        while block := back.read(PART_SIZE):
            read.update(block)
    if read.hexdigest() != digest:
        raise ChecksumMismatch(f"{path} was read back with sha256 {read.hexdigest()}, but {digest} was sent")
