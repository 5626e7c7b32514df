"""Uploads: files of a folder that web service and workers share, or of the object store of imported data.

A file is named after its import. A half upload has another name in a folder, and no import in the store.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from preflight.errors import DatasetError
from preflight.object_store import FileSystem, open_url
from worker.config.settings import Settings

FOLDER: Final = "uploads"
PART: Final = ".part"
"""End of the name of a file that is being written."""
HALF_SECONDS: Final = 3600.0
"""Age at which a half upload is removed."""
NEW_SECONDS: Final = 60.0
"""Age below which a whole upload may be about to get its import."""
STORED: Final = re.compile(r"([0-9a-f]{16})(\.[a-z0-9]{1,7}){0,2}(\.part)?")
SUFFIXES: Final = (
    ".tar.gz", ".tar.bz2", ".tar.xz", ".csv.gz", ".zip", ".tar", ".tgz", ".gz", ".parquet", ".npz", ".csv", ".tsv",
)  # fmt: skip
BLOCK: Final = 8 << 20
"""Bytes of a part of an upload to a store."""


class Upload(Protocol):
    """A file that is being written. Its methods raise `OSError`, and those of a store its client's errors."""

    def write(self, data: bytes) -> None:
        """Append."""

    def commit(self) -> None:
        """Put the file in place, whole."""

    def abort(self) -> None:
        """Remove what was written; never raises."""


class Uploads(Protocol):
    """The files that were uploaded."""

    def create(self, name: str) -> Upload:
        """Begin a file."""

    def has(self, name: str) -> bool:
        """Whether this process reaches a file."""

    def fetch(self, name: str, work: Path, check: Callable[[], None]) -> Path:
        """Return the path of a file, fetched to `work` where it is elsewhere."""

    def remove(self, name: str) -> None:
        """Remove a file; it may be gone."""

    def listed(self) -> Iterator[tuple[str, int, float | None]]:
        """Yield name, bytes and age in seconds, where it is known, of each file."""


def stored_name(import_id: str, file: str) -> str:
    """Return the name of an upload: of the user's name only a known ending counts."""
    return import_id + next((end for end in SUFFIXES if file.lower().endswith(end)), "")


def open_uploads(settings: Settings) -> Uploads:
    """Return the place of uploads: `PREFLIGHT_UPLOAD_DIR`, else the object store, else the data directory.

    Raises:
        InvalidConfig, MissingPackage: the store's URL cannot be used.
    """
    if settings.upload_dir is None and settings.dataset_url is not None:
        store, root = open_url(settings.dataset_url, "PREFLIGHT_DATASET_URL")
        return StoredUploads(store, f"{root}/{FOLDER}")
    return FolderUploads(settings.upload_dir or settings.data_dir / FOLDER)


def bytes_of(uploads: Uploads) -> int:
    """Return the bytes of all uploads, half ones included."""
    return sum(size for _, size, _ in uploads.listed())


def sweep(uploads: Uploads, keep: Callable[[str], bool]) -> int:
    """Remove uploads whose import `keep` does not ask for, and half ones that nobody writes; return how many."""
    gone = 0
    for name, _, age in [*uploads.listed()]:
        found = STORED.fullmatch(name)
        if found is None:
            continue
        is_half = name.endswith(PART)
        is_new = age is not None and age < (HALF_SECONDS if is_half else NEW_SECONDS)
        if not is_new and (is_half or not keep(found[1])):
            uploads.remove(name)
            gone += 1
    return gone


class FolderUploads:
    """Uploads in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, name: str) -> Upload:
        """Begin a file; raises `OSError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return _FolderUpload(self._folder / name)

    def has(self, name: str) -> bool:
        """Whether the file is in the folder."""
        return (self._folder / name).is_file()

    def fetch(self, name: str, work: Path, check: Callable[[], None]) -> Path:  # noqa: ARG002 - of the interface
        """Return the path of a file."""
        path = self._folder / name
        if path.is_symlink() or not path.is_file():
            raise DatasetError(f"the upload {path} is gone; upload it again")
        return path

    def remove(self, name: str) -> None:
        """Remove a file."""
        with suppress(OSError):
            (self._folder / name).unlink()

    def listed(self) -> Iterator[tuple[str, int, float | None]]:
        """Yield name, bytes and age of each file."""
        with suppress(OSError):
            for path in sorted(self._folder.iterdir()):
                with suppress(OSError):
                    status = path.lstat()
                    yield path.name, status.st_size, time.time() - status.st_mtime


class _FolderUpload:
    def __init__(self, target: Path) -> None:
        self._target, self._part = target, target.with_name(target.name + PART)
        self._file = self._part.open("xb", buffering=0)

    def write(self, data: bytes) -> None:
        """Append."""
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def commit(self) -> None:
        """Put the file in place."""
        self._file.close()
        self._part.rename(self._target)

    def abort(self) -> None:
        """Remove what was written."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._part.unlink()


class StoredUploads:
    """Uploads in an object store."""

    def __init__(self, store: FileSystem, root: str) -> None:
        self._store, self._root = store, root

    def create(self, name: str) -> Upload:
        """Begin a file."""
        with suppress(Exception):  # a store without folders
            self._store.makedirs(self._root, exist_ok=True)
        return _StoredUpload(self._store, f"{self._root}/{name}")

    def has(self, name: str) -> bool:
        """Whether the store has the file."""
        self._store.invalidate_cache()
        return self._store.exists(f"{self._root}/{name}")

    def fetch(self, name: str, work: Path, check: Callable[[], None]) -> Path:
        """Return the path of a copy of a file; raises `DatasetError`."""
        target, part = work / name, work / f"{name}{PART}"
        if not target.exists():
            try:
                with self._store.open(f"{self._root}/{name}", "rb") as file, part.open("wb") as out:
                    while block := file.read(BLOCK):
                        out.write(block)
                        check()
            except FileNotFoundError as error:
                raise DatasetError(f"the upload {name} is gone from PREFLIGHT_DATASET_URL; upload it again") from error
            part.rename(target)
        return target

    def remove(self, name: str) -> None:
        """Remove a file."""
        with suppress(FileNotFoundError):
            self._store.rm_file(f"{self._root}/{name}")

    def listed(self) -> Iterator[tuple[str, int, float | None]]:
        """Yield name and bytes of each file."""
        self._store.invalidate_cache()
        try:
            found = self._store.find(self._root)
        except FileNotFoundError:
            return
        for path in found:
            with suppress(FileNotFoundError):  # removed meanwhile
                size, age = int(str(self._store.info(path)["size"])), self._age(path)
                yield path.rpartition("/")[2], size, age

    def _age(self, path: str) -> float | None:
        """Return the seconds since a file was written; None where the store does not say."""
        try:
            written = self._store.modified(path)
        except NotImplementedError:
            return None
        aware = written if written.tzinfo else written.replace(tzinfo=UTC)
        return (datetime.now(UTC) - aware).total_seconds()


class _StoredUpload:
    def __init__(self, store: FileSystem, target: str) -> None:
        self._store, self._target = store, target
        self._file: BinaryIO = store.open(target, "wb", BLOCK)

    def write(self, data: bytes) -> None:
        """Append."""
        self._file.write(data)

    def commit(self) -> None:
        """Send the rest."""
        self._file.close()

    def abort(self) -> None:
        """Remove what was written."""
        with suppress(Exception):
            self._file.close()
        with suppress(Exception):
            self._store.rm_file(self._target)
