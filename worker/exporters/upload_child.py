"""The uploading child: a finished model goes to wherever fsspec can write, and its manifest last.

What was written is read back and compared, file by file. The manifest of an earlier model is removed before the first
and the new one, which names the sha256 of every file, written after the last: who sees a manifest sees a whole model.

Before every write it is read whether a later attempt of the job has finished there meanwhile, whose model then stays:
this process may have been frozen. No lock covers the moment between that look and the write.
"""

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from pydantic import JsonValue, TypeAdapter, ValidationError

from training.artifacts.publish import MANIFEST, read_manifest
from training.errors import ArtifactError, InvalidConfig, MissingPackage
from training.process.child import run_child
from training.process.journal import JournalWriter, Report
from training.system.atomic_files import LARGEST_TEXT, open_regular, sha256_of
from worker.config.settings import load, without_password
from worker.exporters.base import REQUEST, ExportRequest, persist, trouble

PART: Final = 8 << 20
"""Bytes sent at once; a larger file goes in several parts."""
WITH_DIRECTORIES: Final = ("file", "local", "ftp", "sftp", "ssh", "smb", "webdav", "hdfs", "webhdfs", "arrow_hdfs")
"""Schemes whose directories have to be made. A bucket is not: a misspelt one would come into being."""

_OBJECT = TypeAdapter(dict[str, JsonValue])


class Store(Protocol):
    """What is used of fsspec's file systems, which are untyped."""

    def open(self, path: str, mode: str, *, block_size: int) -> BinaryIO:
        """Open a file."""
        ...

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        """Make a directory and those above it."""
        ...

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        ...


class Differs(Exception):
    """What is read back is not what was sent."""


def run(request: ExportRequest, journal: JournalWriter, should_stop: Callable[[], bool]) -> None:  # noqa: ARG001 - every child's signature
    """Upload, and record `done` with the URL; every try that failed is a `retry`."""
    settings = load()
    url = settings.artifact_url or ""
    scheme = url.partition(":")[0]
    store, root = opened(url, scheme, settings.artifact_dir)
    if request.artifact is None:
        journal.write("done", {}, durable=True)
        return
    upload(store, f"{root}/{request.job_id}", request.artifact, journal, makes=scheme in WITH_DIRECTORIES)
    address = f"{without_password(url).rstrip('/')}/{request.job_id}"
    journal.write("done", {"artifact_url": address}, durable=True)


def opened(url: str, scheme: str, own: Path) -> tuple[Store, str]:
    """Return the store of `url`, and the path in it.

    Raises:
        InvalidConfig: fsspec does not know the URL, or it is the directory `own`, in which the models lie already.
        MissingPackage: fsspec, or the package for this kind of URL, is not installed.
    """
    try:
        from fsspec.core import url_to_fs

        store, path = url_to_fs(url)
    except ImportError as error:
        raise MissingPackage(
            f"PREFLIGHT_ARTIFACT_URL is a {scheme} URL, which needs a package that is not installed "
            f"({trouble(error)}); for S3: pip install 'preflight-worker[s3]'"
        ) from error
    except Exception as error:  # each file system checks its options in its own way
        raise InvalidConfig(
            f"PREFLIGHT_ARTIFACT_URL is a {scheme} URL that fsspec cannot use ({trouble(error)}); "
            "write e.g. s3://bucket/prefix"
        ) from error
    if scheme in ("file", "local") and Path(path).resolve() == own.resolve():
        raise InvalidConfig(f"PREFLIGHT_ARTIFACT_URL is {own}, where the models lie already; name another place")
    return store, str(path).rstrip("/")


def upload(store: Store, target: str, artifact: Path, report: Report, *, makes: bool) -> None:
    """Put the files of `artifact` beneath `target`; `makes`: its directories have to be made.

    Raises:
        ArtifactError: there is no whole model, or the store will never take it.
    """
    manifest = read_manifest(artifact)
    if manifest is None:
        raise ArtifactError(f"{artifact} holds no whole model: its manifest or its weights are missing or damaged")
    paths = sorted(path for path in artifact.rglob("*") if path.is_file() and not path.is_symlink())
    files = {str(path.relative_to(artifact)): path for path in paths if path.name != MANIFEST}
    digests = {name: sha256_of(path) for name, path in files.items()}
    vouching = json.dumps({**manifest, "sha256": digests}, indent=2, sort_keys=True).encode() + b"\n"

    def put(name: str, content: Callable[[], BinaryIO], digest: str) -> None:
        persist(partial(_see_that_latest, store, target, manifest), report)
        persist(partial(_put, store, f"{target}/{name}", content, digest, makes), report)

    persist(partial(_see_that_latest, store, target, manifest), report)
    persist(partial(_remove, store, f"{target}/{MANIFEST}"), report)
    for name, path in files.items():
        put(name, partial(open_regular, path), digests[name])
    put(MANIFEST, partial(io.BytesIO, vouching), hashlib.sha256(vouching).hexdigest())


def _see_that_latest(store: Store, target: str, ours: Mapping[str, JsonValue]) -> None:
    """Raise `ArtifactError` where a later attempt's manifest lies beneath `target`.

    A job that was begun anew, once all was forgotten about it, counts from 1 again: by its time it is later.
    """
    try:
        with store.open(f"{target}/{MANIFEST}", "rb", block_size=PART) as file:
            theirs = _OBJECT.validate_json(file.read(LARGEST_TEXT))
    except (FileNotFoundError, PermissionError):
        return  # S3 says the latter of what is not there to those who may not list
    except ValidationError:
        return  # damaged: it vouches for nothing
    match ours, theirs:
        case (
            {"job_id": str(job_id), "attempt": int(own), "created_at": str(made)},
            {"job_id": str(same), "attempt": int(later), "created_at": str(then)},
        ) if (same, later > own, then >= made) == (job_id, True, True):
            raise ArtifactError(
                f"{without_password(target)} holds the model of attempt {later}, which is later than {own} and is kept"
            )


def _remove(store: Store, path: str) -> None:
    with suppress(FileNotFoundError):
        store.rm_file(path)


def _put(store: Store, path: str, content: Callable[[], BinaryIO], digest: str, makes: bool) -> None:
    """Write a file and read it back; raises `Differs` and whatever the store has to say."""
    if makes:
        store.makedirs(path.rpartition("/")[0], exist_ok=True)
    with content() as source, store.open(path, "wb", block_size=PART) as target:
        shutil.copyfileobj(source, target, PART)
    read = hashlib.sha256()
    with store.open(path, "rb", block_size=PART) as back:
        while block := back.read(PART):
            read.update(block)
    if read.hexdigest() != digest:
        raise Differs(f"{path} was read back with sha256 {read.hexdigest()}, but {digest} was sent")


if __name__ == "__main__":
    run_child(REQUEST, run)
