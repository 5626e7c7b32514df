"""The catalog of imported data sets, below the data directory.

`imported/names/<name>/<number>.json` is a version's manifest: where it is, the version is whole, and its store is
`imported/stores/<sha256>.safetensors`, which versions of one content share. `<sha256>.rows.npy` next to it holds what
the next import of the name, and `data diff`, need, `<sha256>.pairs.jsonl` its duplicates, and `<sha256>.issues.json`
the labels that look wrong. `imported/names/<name>/erased.json` holds the hashes of samples that were deleted, and
`imported/aliases/<name>` the reference that an alias stands for.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from preflight.contract.registry import DATASETS, names, nearest
from preflight.errors import DatasetError, InvalidConfig
from preflight.files.atomic_files import read_text, sync_directory, write_atomically
from preflight.files.locks import FLAGS, remove_unlocked
from training.catalog.version import NAME, VERSION, Reference, Version
from training.data.dataset_info import DatasetInfo, read_info

FOLDER: Final = "imported"
"""Folder of imported data in the data directory."""
LARGEST_MANIFEST: Final = 16 << 20


class Catalog:
    """The imported data sets of a data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.root = data_dir / FOLDER
        self._names = self.root / "names"
        self._aliases = self.root / "aliases"
        self.stores = self.root / "stores"

    # --- reading

    def names(self) -> list[str]:
        """Return the names that have a version, and the aliases, sorted."""
        return sorted({*(name for name in _listed(self._names) if self.numbers(name)), *self.aliases()})

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of the versions of a name, the oldest first."""
        found = (path.removesuffix(".json") for path in _listed(self._names / name) if path.endswith(".json"))
        return sorted(int(number) for number in found if number.isdigit())

    def aliases(self) -> dict[str, str]:
        """Return the aliases and the references that they stand for."""
        found = {}
        for name in _listed(self._aliases):
            with suppress(OSError, UnicodeError):
                found[name] = read_text(self._aliases / name, 200).decode().strip()
        return found

    def versions(self) -> list[Version]:
        """Return all versions, by name and number."""
        return [
            version for name in _listed(self._names) for number in self.numbers(name)
            if (version := self._read(name, number)) is not None
        ]  # fmt: skip

    def find(self, text: str) -> Version:
        """Return the version that a reference names: of a name alone the newest.

        Raises:
            InvalidConfig: there is none.
        """
        asked = Reference.parse(text)
        alias = self.aliases().get(asked.name) if asked.version is None else None
        if alias is not None:
            asked = Reference.parse(alias)
        numbers = self.numbers(asked.name)
        number = asked.version or (numbers[-1] if numbers else 0)
        found = self._read(asked.name, number) if number in numbers else None
        if found is not None:
            return found
        if not numbers and self.is_importing(asked.name):
            message = f"data set {asked.name!r} is being imported; wait until `preflight data add` has ended"
        elif not numbers:
            known = sorted({*self.names(), *names(DATASETS)})
            message = f"dataset {asked.name!r} is not known{nearest(asked.name, known)}; use one of {', '.join(known)}"
        else:
            held = ", ".join(f"{asked.name}@{each}" for each in numbers[-20:])
            message = f"data set {asked.name!r} has no version {number}; use one of {held}"
        raise InvalidConfig(message, field="dataset")

    def info(self, version: Version) -> DatasetInfo:
        """Return the description of a version's store; raises `DatasetError` where it is damaged or missing."""
        return dataclasses.replace(read_info(self.store(version.sha256)), name=version.reference, sha256=version.sha256)

    def store(self, sha256: str) -> Path:
        """Return the path of the store with this content."""
        return self.stores / f"{sha256}.safetensors"

    def rows(self, sha256: str) -> Path:
        """Return the path of the rows of a store."""
        return self.stores / f"{sha256}.rows.npy"

    def pairs(self, sha256: str) -> Path:
        """Return the path of the duplicates of a store."""
        return self.stores / f"{sha256}.pairs.jsonl"

    def issues(self, sha256: str) -> Path:
        """Return the path of the labels of a store that look wrong."""
        return self.stores / f"{sha256}.issues.json"

    def erased(self, name: str) -> Path:
        """Return the path of the hashes of the samples that were deleted from a data set."""
        return self._names / name / "erased.json"

    def is_importing(self, name: str) -> bool:
        """Whether an import of the name is running."""
        try:
            file = os.open(self._lock(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(file)
        return False

    # --- writing

    @contextmanager
    def importing(self, name: str) -> Iterator[Path]:
        """Hold the name for one import; yields its working directory, which outlives a kill.

        Raises:
            InvalidConfig: the name cannot be given to imported data.
            DatasetError: another import of the name is running, or the directory cannot be written.
        """
        self.require_free(name)
        try:
            work = self.root / "work" / name
            work.mkdir(parents=True, exist_ok=True)
            self.stores.mkdir(exist_ok=True)
            file = os.open(self._lock(name), FLAGS, 0o644)
        except OSError as error:
            raise _unwritable(self.root, error) from error
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DatasetError(
                    f"another process is importing {name!r}; wait until it has ended, or choose another name",
                    field=name,
                ) from None
            yield work
        finally:
            os.close(file)

    def register(self, version: Version, put: Callable[[], None]) -> Version:
        """Make a version known under the next number of its name, in one step, once `put` has put its store in place.

        Raises:
            DatasetError: it cannot be written.
        """
        with self._settled():
            put()
            return self._register(version)

    def _register(self, version: Version) -> Version:
        numbers = self.numbers(version.name)
        last = max((*numbers, *self._removed(version.name)), default=0)
        found = dataclasses.replace(version, version=last + 1)
        self.save(found)
        return found

    def save(self, version: Version) -> None:
        """Write the manifest of a version, whole or not at all; raises `DatasetError`."""
        try:
            (self._names / version.name).mkdir(parents=True, exist_ok=True)
            write_atomically(self.manifest(version.name, version.version), VERSION.dump_json(version, indent=1))
            sync_directory(self._names)
        except OSError as error:
            raise _unwritable(self.root, error) from error

    def replace(self, version: Version, put: Callable[[], None]) -> None:
        """Give a version that is known another content, in one step, once `put` has put its store in place.

        The former content is removed, unless another version has it or a process reads it; raises `DatasetError`.
        """
        with self._settled():
            put()
            self.save(version)
            self._sweep()

    def sweep(self) -> None:
        """Remove the stores that no version has and no process reads any more; raises `DatasetError`."""
        if self.stores.is_dir():
            with self._settled():
                self._sweep()

    def alias(self, name: str, reference: str) -> Version:
        """Make a name an alias of a version, or of the newest of another name; return the version it stands for now.

        Raises:
            InvalidConfig: the name is taken, or there is no such version.
        """
        if self.numbers(name):
            raise InvalidConfig(f"{name!r} is an imported data set; choose another alias", field="alias")
        if Reference.parse(reference).name in self.aliases():
            raise InvalidConfig(f"{reference!r} is an alias itself; name the data set", field="alias")
        self.require_free(name)
        found = self.find(reference)
        try:
            self._aliases.mkdir(parents=True, exist_ok=True)
            write_atomically(self._aliases / name, reference.encode())
        except OSError as error:
            raise _unwritable(self.root, error) from error
        return found

    def remove(self, text: str) -> list[Version]:
        """Remove a version, all versions of a name, or an alias; returns the versions that are gone.

        A number is never given again. Stores that no version has any more are removed, too.

        Raises:
            InvalidConfig: there is no such data set, or an alias stands for it.
        """
        asked = Reference.parse(text)
        aliases = self.aliases()
        if asked.name in aliases and asked.version is None:
            (self._aliases / asked.name).unlink(missing_ok=True)
            return []
        first = self.find(text)
        numbers = [first.version] if asked.version else self.numbers(asked.name)
        self.require_unaliased(text)
        gone = [version for number in numbers if (version := self._read(asked.name, number)) is not None]
        with self.importing(asked.name), self._settled():
            for version in gone:
                self.manifest(version.name, version.version).rename(
                    self._names / version.name / f"{version.version}.removed"
                )
            self._sweep()
        return gone

    def require_unaliased(self, text: str) -> None:
        """Raise `InvalidConfig` where an alias stands for a version, or for one of a name."""
        asked, aliases = Reference.parse(text), self.aliases()
        if asked.name in aliases and asked.version is None:
            return
        for alias, reference in aliases.items():
            meant = Reference.parse(reference)
            if meant.name == asked.name and (None in (meant.version, asked.version) or meant.version == asked.version):
                raise InvalidConfig(
                    f"alias {alias!r} stands for {reference}; remove the alias first (`preflight data remove {alias}`)",
                    field="alias",
                )

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Keep others from putting or removing stores meanwhile."""
        try:
            (self.root / "work").mkdir(exist_ok=True)
            file = os.open(self.root / "work" / "~stores.lock", FLAGS, 0o644)
        except OSError as error:
            raise _unwritable(self.root, error) from error
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def _sweep(self) -> None:
        """Remove stores that no version has, but for one that a job has locked: a later sweep finds it."""
        used = {version.sha256 for version in self.versions()}
        for name in _listed(self.stores):
            if name.partition(".")[0] not in used and not name.startswith("."):
                remove_unlocked(self.stores / name)

    def _removed(self, name: str) -> list[int]:
        found = (path.removesuffix(".removed") for path in _listed(self._names / name) if path.endswith(".removed"))
        return [int(number) for number in found if number.isdigit()]

    def require_free(self, name: str) -> None:
        """Raise `InvalidConfig` for a name that imported data cannot have."""
        if NAME.fullmatch(name) is None:
            raise InvalidConfig(
                f"{name[:80]!r} is no name of a data set; use up to 64 small letters, digits and ._- and begin with a "
                "letter or digit",
                field="name",
            )
        if name in names(DATASETS):
            raise InvalidConfig(f"{name!r} is the name of a registered data set; choose another one", field="name")

    def _lock(self, name: str) -> Path:
        return self.root / "work" / f"{name}.lock"

    def manifest(self, name: str, number: int) -> Path:
        """Return the path of the manifest of a version."""
        return self._names / name / f"{number}.json"

    def _read(self, name: str, number: int) -> Version | None:
        try:
            return VERSION.validate_json(read_text(self.manifest(name, number), LARGEST_MANIFEST))
        except (OSError, ValidationError):
            return None


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names alone
    except OSError:
        return []


def _unwritable(path: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"{path} cannot be written ({error.strerror}); make room there or set PREFLIGHT_DATA_DIR to a writable "
        "directory",
        field=str(path),
    )
