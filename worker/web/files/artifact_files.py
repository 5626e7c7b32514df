"""Files of a finished model: a fixed list of names, read from this service's disk, else from the artifact URL."""

import errno
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final, Literal, Protocol

from preflight.files.atomic_files import NotRegular, open_regular
from preflight.object_store import FileSystem, open_url
from preflight.recognizer.onnx import ONNX
from training.artifacts.evaluation import EVALUATION
from training.artifacts.model_dir import MANIFEST, MODEL, REPORT
from training.artifacts.predictions import PREDICTIONS
from training.step.profiler import TRACE
from worker.config.settings import Settings

FILES: Final[Mapping[str, str]] = {
    MODEL: "application/octet-stream", ONNX: "application/octet-stream", PREDICTIONS: "application/octet-stream",
    EVALUATION: "application/json", MANIFEST: "application/json",
    REPORT: "text/html; charset=utf-8", TRACE: "application/gzip",
}  # fmt: skip
"""Name of each file that is served -> its media type; no other name leads to a file."""
READ_SIZE: Final = 1 << 20
"""Bytes per request to an object store; a response in many small pieces reads ahead by as many."""
Source = Literal["disk", "url"]
MISSING: Final = (FileNotFoundError, NotADirectoryError, PermissionError)
"""Errors for a missing file; S3 gives the last one where the permission to list is missing."""


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file that is open for reading; the caller closes it."""

    name: str
    content: BinaryIO
    size: int
    """Bytes."""
    version: str
    """Entity tag: each version of the file has another one."""


class FileSource(Protocol):
    """A place where the files of models are stored."""

    @property
    def kind(self) -> Source:
        """Name of the source."""

    def open(self, job_id: str, name: str) -> OpenFile:
        """Open a file; raises `OSError`, one of `MISSING` where there is none, and exceptions of the store."""


@dataclass(frozen=True)
class DiskFiles:
    """Files in the artifact directory; symbolic links are not followed."""

    root: Path
    kind: Source = "disk"

    def open(self, job_id: str, name: str) -> OpenFile:
        """Open a file; raises `OSError`."""
        directory = self.root / job_id
        if directory.is_symlink():
            raise FileNotFoundError(directory)
        try:
            content = open_regular(directory / name)
        except OSError as error:
            if isinstance(error, NotRegular) or error.errno == errno.ELOOP:  # a pipe, or a symbolic link
                raise FileNotFoundError(directory / name) from error
            raise
        found = os.fstat(content.fileno())
        return OpenFile(name, content, found.st_size, _tag(found.st_ino, found.st_size, found.st_mtime_ns))


@dataclass(frozen=True)
class RemoteFiles:
    """Files under the artifact URL; a model without a manifest is incomplete there."""

    settings: Settings
    url: str
    kind: Source = "url"

    @cached_property
    def _store(self) -> tuple[FileSystem, str]:
        return open_url(self.url, "PREFLIGHT_ARTIFACT_URL", other_than=self.settings.artifact_dir)

    def open(self, job_id: str, name: str) -> OpenFile:
        """Open a file; raises `PreflightError` for an unusable URL, and exceptions of the store."""
        store, root = self._store
        store.info(f"{root}/{job_id}/{MANIFEST}")
        path = f"{root}/{job_id}/{name}"
        found = store.info(path)
        size = int(str(found["size"]))
        tag = _tag(size, *(found.get(key) for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created")))
        return OpenFile(name, store.open(path, "rb", block_size=READ_SIZE), size, tag)


def sources_of(settings: Settings) -> Sequence[FileSource]:
    """Return where this service looks for the files of models, in this order."""
    disk = DiskFiles(settings.artifact_dir)
    return (disk,) if settings.artifact_url is None else (disk, RemoteFiles(settings, settings.artifact_url))


def open_file(sources: Sequence[FileSource], job_id: str, name: str) -> OpenFile:
    """Open a file of `FILES` where it lies.

    Raises:
        FileNotFoundError: none of `sources` has it.
        Exception: a source cannot be read.
    """
    for source in sources:
        try:
            return source.open(job_id, name)
        except MISSING:
            continue
    raise FileNotFoundError(name)


def list_files(sources: Sequence[FileSource], job_id: str) -> tuple[Source | None, Sequence[tuple[str, int]]]:
    """Return the first source that has files of a job, and the name and bytes of each; raises as `open_file`."""
    for source in sources:
        found = [entry for name in FILES if (entry := _size(source, job_id, name)) is not None]
        if found:
            return source.kind, found
    return None, ()


def _size(source: FileSource, job_id: str, name: str) -> tuple[str, int] | None:
    try:
        file = source.open(job_id, name)
    except MISSING:
        return None
    file.content.close()
    return name, file.size


def _tag(*parts: object) -> str:
    return f'"{hashlib.sha256(repr(parts).encode()).hexdigest()[:32]}"'
