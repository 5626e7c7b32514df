"""The object store of imported data: uploaded once, fetched by hash, kept within a bound."""

import shutil
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from io import BytesIO, FileIO
from pathlib import Path
from typing import BinaryIO

import pytest
from support.files.pictures import imported, save_tree

from preflight.errors import DatasetError, InvalidConfig
from preflight.files.locks import share
from training.catalog import shared
from training.catalog.catalog import Catalog
from training.catalog.shared import SharedCatalog, hash_store
from training.catalog.version import Version
from training.importing.erasing import Erasure, erase

LARGE = 1 << 40


class Dropping:
    """A store in a folder that ends reads of stores early, as often as it is told."""

    def __init__(self, drops: int = 0) -> None:
        self.drops, self.bytes = drops, 20_000
        self.opened: list[str] = []

    def open(self, path: str, mode: str, block_size: int | None = None) -> BinaryIO | FileIO:  # noqa: ARG002 - of the interface
        self.opened.append(f"{mode} {Path(path).suffixes[-1]}")
        if mode == "rb" and path.endswith(".safetensors") and self.drops:
            self.drops -= 1
            return Cut(Path(path).read_bytes(), self.bytes)
        return BytesIO(Path(path).read_bytes()) if mode == "rb" else FileIO(path, "w")

    def info(self, path: str) -> Mapping[str, object]:
        return {"size": Path(path).stat().st_size}

    def modified(self, path: str) -> datetime:
        return datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)

    def ls(self, path: str, detail: bool) -> list[str]:  # noqa: ARG002 - fsspec's
        return [str(each) for each in Path(path).iterdir()]

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def isdir(self, path: str) -> bool:
        return Path(path).is_dir()

    def find(self, path: str) -> list[str]:
        return [str(each) for each in Path(path).rglob("*") if each.is_file()]

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        Path(path).mkdir(parents=True, exist_ok=exist_ok)

    def invalidate_cache(self) -> None:
        pass

    def rm_file(self, path: str) -> None:
        Path(path).unlink()


class Cut(BytesIO):
    """A connection that is lost after so many bytes."""

    def __init__(self, content: bytes, count: int) -> None:
        super().__init__(content)
        self._count = count

    def read(self, size: int | None = -1, /) -> bytes:  # noqa: ARG002 - of a file
        if not self._count:
            raise ConnectionResetError("connection reset by peer")
        found = super().read(self._count)
        self._count = 0
        return found


def connected(root: Path, name: str, store: Dropping | None = None) -> tuple[Catalog, SharedCatalog]:
    """Return the catalog of a machine, and its view of the one store."""
    catalog = Catalog(root / name)
    found = SharedCatalog((root / "bucket").as_uri(), catalog)
    if store is not None:
        found._store = store
    return catalog, found


def pushed(root: Path, count: int = 20, name: str = "mine") -> Version:
    version = imported(root / "here", save_tree(root / f"source {count}", count), name=name)
    connected(root, "here")[1].push(version)
    return version


def test_another_machine_fetches_what_was_uploaded(tmp_path: Path) -> None:
    version = pushed(tmp_path)
    catalog, there = connected(tmp_path, "there")
    there.pull("mine")
    assert catalog.find("mine") == version
    path = there.fetch(version, LARGE)
    assert hash_store(path) == version.sha256
    assert catalog.info(version).name == "mine@1"
    there.pull("absent")
    assert catalog.names() == ["mine"]


def test_a_store_is_uploaded_once(tmp_path: Path) -> None:
    version, store = pushed(tmp_path), Dropping()
    connected(tmp_path, "here", store)[1].push(version)
    assert not [each for each in store.opened if each.startswith("wb")]


def test_a_number_that_another_machine_gave_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    pushed(tmp_path)
    other = imported(tmp_path / "there", save_tree(tmp_path / "other", 9))
    with pytest.raises(DatasetError, match="has another mine@1, which was added elsewhere meanwhile; add it again"):
        connected(tmp_path, "there")[1].push(other)


def test_a_dropped_connection_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PAUSE", 0.0)
    version, store = pushed(tmp_path), Dropping(drops=3)
    catalog, there = connected(tmp_path, "there", store)
    assert hash_store(there.fetch(version, LARGE)) == version.sha256
    assert store.opened.count("rb .safetensors") == 4
    catalog.store(version.sha256).unlink()
    store.drops, store.bytes = 99, 2_000
    with pytest.raises(DatasetError, match=r"could not fetch mine@1 in 5 tries \(.* bytes came|connection reset"):
        there.fetch(version, LARGE)
    assert [path.name for path in catalog.stores.iterdir()] == [f".{version.sha256}.lock"]


def test_no_password_of_an_address_is_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of stores name the address that they asked."""

    def fail(_: str) -> bool:
        raise ConnectionError("ftp://me:hunter2@store is away")

    monkeypatch.setattr(shared, "PAUSE", 0.0)
    store = Dropping()
    monkeypatch.setattr(store, "exists", fail)
    with pytest.raises(DatasetError, match=r"ConnectionError: ftp://me:\*\*\*@store is away\); try again"):
        connected(tmp_path, "here", store)[1].pull("mine")


def test_what_is_not_what_its_hash_says_is_not_used(tmp_path: Path) -> None:
    version = pushed(tmp_path)
    path = tmp_path / "bucket" / "stores" / f"{version.sha256}.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    catalog, there = connected(tmp_path, "there")
    with pytest.raises(DatasetError, match=f"has the SHA-256 [0-9a-f]{{64}}, not {version.sha256}"):
        there.fetch(version, LARGE)
    assert not catalog.store(version.sha256).exists()
    path.unlink()
    with pytest.raises(DatasetError, match="cannot be fetched"):
        there.fetch(version, LARGE)


def test_two_workers_fetch_once(tmp_path: Path) -> None:
    version, store = pushed(tmp_path, 100), Dropping()
    fetching = [
        threading.Thread(target=connected(tmp_path, "there", store)[1].fetch, args=(version, LARGE)) for _ in range(4)
    ]
    for thread in fetching:
        thread.start()
    for thread in fetching:
        thread.join()
    assert store.opened.count("rb .safetensors") == 1


def test_what_was_used_least_recently_goes_unless_a_job_uses_it(tmp_path: Path) -> None:
    versions = [pushed(tmp_path, count, f"set{count}") for count in (20, 21, 22, 23)]
    catalog, there = connected(tmp_path, "there")
    one, two, three, four = versions
    size = there.fetch(one, LARGE).stat().st_size
    held = share(catalog.store(one.sha256))
    assert held is not None
    there.fetch(two, LARGE)
    there.fetch(three, LARGE)
    time.sleep(0.05)  # file systems keep times to some milliseconds
    there.fetch(two, LARGE)
    time.sleep(0.05)
    there.fetch(four, 3 * size + 40_000)
    assert [catalog.store(each.sha256).exists() for each in versions] == [True, True, False, True]
    held.close()
    there.fetch(four, size)
    assert [catalog.store(each.sha256).exists() for each in versions] == [False, False, False, True]


def test_an_alias_is_known_elsewhere(tmp_path: Path) -> None:
    version = pushed(tmp_path)
    catalog, here = connected(tmp_path, "here")
    catalog.alias("production", "mine@1")
    here._makes_directories = True
    here.push_alias("production")
    other, there = connected(tmp_path, "there")
    there.pull("production")
    assert other.find("production") == version
    shutil.rmtree(tmp_path / "bucket")


def test_a_deleted_sample_leaves_the_store_and_other_machines(tmp_path: Path) -> None:
    """They take the new content where they look at the data set again; the old one is nowhere any more."""
    version = pushed(tmp_path)
    there, other = connected(tmp_path, "there")
    other.pull("mine")
    other.fetch(version, LARGE)
    here, own = connected(tmp_path, "here")
    (changed,) = erase(here, Erasure("mine@1", version.sha256, (0,), "ada"))
    own.push_erased("mine")
    assert not [*tmp_path.rglob(f"bucket/**/{version.sha256}*")]
    other.pull("mine")
    assert there.find("mine") == changed
    assert [*there.stores.glob("*.safetensors")] == []
    assert hash_store(other.fetch(changed, LARGE)) == changed.sha256
    other.fetch_rows(changed)
    with pytest.raises(InvalidConfig, match="were deleted since you looked at it"):
        erase(there, Erasure("mine@1", version.sha256, (1,), "bob"))
