"""The catalog in an object store (`PREFLIGHT_DATASET_URL`): versions are uploaded once, and fetched by their hash.

The store has the folders of the catalog: `names/<name>/<number>.json` and `stores/<sha256>.*`. A manifest is written
last, so a version that has one is whole. A fetched store is hashed before it takes its name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from preflight.errors import DatasetError
from preflight.files.atomic_files import write_atomically
from preflight.files.locks import FLAGS, remove_unlocked
from preflight.object_store import LOCAL_SCHEMES, describe_error, open_url
from training.catalog.catalog import Catalog
from training.catalog.version import NAME, VERSION, Reference, Version, content_header, content_sha256
from training.data.dataset_info import info_of, opened

BLOCK: Final = 4 << 20
TRIES: Final = 5
"""Tries of each operation; a download that drops in the middle resumes there."""
PAUSE: Final = 0.5
"""Seconds before the second try; doubled each time."""
LARGEST_MANIFEST: Final = 16 << 20
MAX_VERSIONS: Final = 10_000
LOCAL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""Errors of this disk, after which nothing is tried again."""
Found = TypeVar("Found")


class SharedCatalog:
    """The catalog of a data directory, and its copy in an object store."""

    def __init__(self, url: str, catalog: Catalog) -> None:
        """Connect lazily; raises as `open_url`."""
        self._store, self._root = open_url(url, "PREFLIGHT_DATASET_URL")
        self._catalog = catalog
        self._makes_directories = url.partition(":")[0] in LOCAL_SCHEMES

    def pull(self, name: str) -> None:
        """Fetch the manifests of a name that are missing here; raises `DatasetError`."""
        if NAME.fullmatch(name) is None:
            return
        self._store.invalidate_cache()
        alias = f"{self._root}/aliases/{name}"
        if self._try(f"look for alias {name}", partial(self._store.exists, alias)):
            reference = self._try(f"read alias {name}", partial(self._read, alias)).decode()
            (self._catalog.root / "aliases").mkdir(parents=True, exist_ok=True)
            write_atomically(self._catalog.root / "aliases" / name, reference.encode())
            self.pull(Reference.parse(reference).name)
            return
        folder = f"{self._root}/names/{name}"
        try:
            listed = self._try(f"list {name}", lambda: self._store.ls(folder, False))
        except FileNotFoundError:
            return
        here = self._catalog.root / "names" / name
        files = {str(path).rstrip("/").rpartition("/")[2]: str(path) for path in listed[:MAX_VERSIONS]}
        erased = self._erased_elsewhere(name, files)
        for file, path in files.items():
            number = file.removesuffix(".json")
            if not (file.endswith(".json") and number.isdigit() and len(number) < 7):
                continue
            if erased is None and (here / file).exists():
                continue
            text = self._try(f"read {name}@{number}", partial(self._read, path))
            version = VERSION.validate_json(text)
            if (version.name, version.version) != (name, int(number)):
                raise DatasetError(f"the manifest {name}@{number} in PREFLIGHT_DATASET_URL is of another data set")
            here.mkdir(parents=True, exist_ok=True)
            write_atomically(here / file, VERSION.dump_json(version, indent=1))
        if erased is not None:
            write_atomically(self._catalog.erased(name), erased)
            self._catalog.sweep()

    def _erased_elsewhere(self, name: str, files: Mapping[str, str]) -> bytes | None:
        """Return the list of deleted samples where it differs from the one here: versions have changed."""
        local = self._catalog.erased(name)
        if local.name not in files:
            return None
        found = self._try(f"read {name}", partial(self._read, files[local.name]))
        return None if local.exists() and local.read_bytes() == found else found

    def pull_all(self) -> None:
        """Fetch the manifests of all names that are missing here; raises `DatasetError`."""
        self._store.invalidate_cache()
        for kind in ("names", "aliases"):
            folder = f"{self._root}/{kind}"
            try:
                listed = self._try(f"list {kind}", partial(self._store.ls, folder, False))
            except FileNotFoundError:
                continue
            for path in listed[:MAX_VERSIONS]:
                self.pull(str(path).rstrip("/").rpartition("/")[2])

    def push(self, version: Version) -> None:
        """Upload a version, its store only where the object store has none; raises `DatasetError`."""
        self._store.invalidate_cache()
        self._push_files(version)
        manifest, target = self._manifest(version)
        if self._try("look for the version", lambda: self._store.exists(target)):
            if VERSION.validate_json(self._read(target)).sha256 == version.sha256:
                return
            raise DatasetError(
                f"PREFLIGHT_DATASET_URL has another {version.reference}, which was added elsewhere meanwhile; add "
                "it again"
            )
        self._try(f"upload {version.reference}", lambda: self._write(manifest, target))

    def push_erased(self, name: str) -> None:
        """Upload the versions of a data set that the deletion of samples has changed, and remove their former contents.

        Raises:
            DatasetError: the object store does not take it; the same call, made again, continues.
        """
        self._store.invalidate_cache()
        versions = [self._catalog.find(f"{name}@{number}") for number in self._catalog.numbers(name)]
        for version in versions:
            manifest, target = self._manifest(version)
            if VERSION.validate_json(self._try(f"read {version.reference}", partial(self._read, target))) != version:
                self._push_files(version)
                self._try(f"upload {version.reference}", partial(self._write, manifest, target))
        local = self._catalog.erased(name)
        self._try(f"upload {local.name}", lambda: self._write(local, f"{self._root}/names/{name}/{local.name}"))
        self.pull_all()
        used = {version.sha256 for version in self._catalog.versions()}
        for sha256 in {former for version in versions for former in version.former[-1:]} - used:
            for path in self._files(sha256):
                with suppress(FileNotFoundError):
                    self._try("remove a content", partial(self._store.rm_file, f"{self._root}/stores/{path.name}"))

    def _manifest(self, version: Version) -> tuple[Path, str]:
        """Return where the manifest of a version is here, and in the object store."""
        file = f"names/{version.name}/{version.version}.json"
        return self._catalog.root / file, f"{self._root}/{file}"

    def _files(self, sha256: str) -> tuple[Path, ...]:
        """Return the paths of a content here, the store last."""
        catalog = self._catalog
        return catalog.issues(sha256), catalog.pairs(sha256), catalog.rows(sha256), catalog.store(sha256)

    def _push_files(self, version: Version) -> None:
        for local in self._files(version.sha256):
            target = f"{self._root}/stores/{local.name}"
            if local.exists() and not self._try("look for it", partial(self._has, target, local.stat().st_size)):
                self._try(f"upload {local.name}", partial(self._write, local, target))

    def fetch(self, version: Version, most_bytes: int) -> Path:
        """Return the store of a version, fetched where it is missing here: once, however many ask.

        Then stores that were used least recently and that no job uses are removed, until all have at most `most_bytes`.

        Raises:
            DatasetError: it is not there, or its content has another hash.
        """
        path = self._catalog.store(version.sha256)
        self._catalog.stores.mkdir(parents=True, exist_ok=True)
        with _locked(self._catalog.stores / f".{version.sha256}.lock"):
            if not path.exists():
                self._download(version, path)
        with suppress(OSError):
            os.utime(path)
        self._evict(most_bytes, path)
        return path

    def fetch_rows(self, version: Version) -> None:
        """Fetch the rows of a version's samples, where they are missing here; raises `DatasetError`."""
        try:
            self.fetch_file(version, self._catalog.rows(version.sha256))
        except FileNotFoundError as error:
            raise DatasetError(f"PREFLIGHT_DATASET_URL has no rows of {version.reference}; import it again") from error
        for path in (self._catalog.pairs(version.sha256), self._catalog.issues(version.sha256)):
            with suppress(FileNotFoundError):  # of an earlier release, or nobody has looked for wrong labels
                self.fetch_file(version, path)

    def fetch_file(self, version: Version, path: Path) -> None:
        """Fetch a file next to the store of a version, where it is missing here.

        Raises:
            FileNotFoundError: the object store has none.
            DatasetError: it cannot be fetched.
        """
        if path.exists():
            return
        staged = path.parent / f".{path.name}.part"
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.unlink(missing_ok=True)
        try:
            self._try(f"fetch {version.reference}", lambda: self._append(f"{self._root}/stores/{path.name}", staged))
            staged.rename(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DatasetError(
                f"{version.reference} cannot be fetched to {path.parent} ({error.strerror or describe_error(error)}); "
                "make room"
            ) from error

    def push_issues(self, version: Version) -> None:
        """Upload the labels of a version that look wrong; raises `DatasetError`."""
        local = self._catalog.issues(version.sha256)
        self._try(f"upload {local.name}", lambda: self._write(local, f"{self._root}/stores/{local.name}"))

    def push_alias(self, name: str) -> None:
        """Upload the reference that an alias stands for; raises `DatasetError`."""
        local = self._catalog.root / "aliases" / name
        self._try(f"upload alias {name}", partial(self._write, local, f"{self._root}/aliases/{name}"))

    def remove(self, version: Version) -> None:
        """Remove a version's manifest; its store stays for others of the same content. Raises `DatasetError`."""
        target = self._manifest(version)[1]
        with suppress(FileNotFoundError):
            self._try(f"remove {version.reference}", lambda: self._store.rm_file(target))

    def _download(self, version: Version, path: Path) -> None:
        source = f"{self._root}/stores/{path.name}"
        staged = path.parent / f".{path.name}.part"
        staged.unlink(missing_ok=True)
        try:
            self._try(f"fetch {version.reference}", lambda: self._append(source, staged))
            found = hash_store(staged)
            if found != version.sha256:
                raise DatasetError(
                    f"what PREFLIGHT_DATASET_URL has as {version.reference} has the SHA-256 {found}, not "
                    f"{version.sha256}; import it again"
                )
            staged.rename(path)
        except OSError as error:
            raise DatasetError(
                f"{version.reference} cannot be fetched to {path.parent} ({error.strerror or describe_error(error)}); "
                "make room there, or see whether PREFLIGHT_DATASET_URL has it"
            ) from error
        finally:
            staged.unlink(missing_ok=True)

    def _append(self, source: str, staged: Path) -> None:
        """Fetch the missing end of a file."""
        size = int(str(self._store.info(source)["size"]))
        with staged.open("ab") as out, self._store.open(source, "rb") as file:
            file.seek(out.tell())
            while block := file.read(BLOCK):
                out.write(block)
        if staged.stat().st_size != size:
            raise ConnectionError(f"{staged.stat().st_size:,} of {size:,} bytes came")

    def _has(self, target: str, size: int) -> bool:
        try:
            return int(str(self._store.info(target)["size"])) == size
        except FileNotFoundError:
            return False

    def _read(self, path: str) -> bytes:
        with self._store.open(path, "rb") as file:
            return file.read(LARGEST_MANIFEST)

    def _write(self, local: Path, target: str) -> None:
        if self._makes_directories:
            self._store.makedirs(target.rpartition("/")[0], exist_ok=True)
        with local.open("rb") as file, self._store.open(target, "wb") as out:
            shutil.copyfileobj(file, out, BLOCK)

    def _try(self, what: str, action: Callable[[], Found]) -> Found:
        """Return the result of `action`, tried again where the connection or the store fails; raises `DatasetError`."""
        for number in range(TRIES):
            try:
                return action()
            except (DatasetError, FileNotFoundError, PermissionError):
                raise
            except Exception as error:  # clients of stores have errors of many kinds
                if isinstance(error, OSError) and error.errno in LOCAL:
                    raise
                if number == TRIES - 1:
                    raise DatasetError(
                        f"PREFLIGHT_DATASET_URL: could not {what} in {TRIES} tries ({describe_error(error)}); try again"
                    ) from error
                time.sleep(PAUSE * 2**number)
        raise AssertionError("the last try returns or raises")

    def _evict(self, most_bytes: int, keep: Path) -> None:
        """Remove the stores that were used least recently until at most `most_bytes` are left."""
        found = []
        for path in self._catalog.stores.glob("*.safetensors"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= most_bytes:
                return
            if path != keep and remove_unlocked(path):
                total -= size


def hash_store(path: Path) -> str:
    """Return the SHA-256 of the content of a store; raises `DatasetError`, `OSError`."""
    with opened(path) as file:
        info = info_of(file, path)
        counts = (info.train_count - (info.validation_count or 0), info.validation_count or 0, info.test_count)
        digest = content_sha256(content_header(info.shape, info.class_names, counts))
        file.seek(0)
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock alone, waiting for it; on a file system without locks there is none."""
    file = os.open(path, FLAGS, 0o644)
    try:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
