"""Single samples are deleted: their pixels leave every version, whatever kills or reads it meanwhile."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from support.files.pictures import imported, save_tree
from support.worker.services import ROOT

from preflight.errors import InvalidConfig
from preflight.files.locks import share
from training.catalog.catalog import Catalog
from training.catalog.shared import hash_store
from training.catalog.version import Version
from training.data.dataset_store import map_images
from training.importing.difference import read_rows
from training.importing.erasing import ERASED, MOST_ERASED, Erased, Erasure, erase, read_erased
from training.importing.pairs import read_pairs
from training.importing.revision import StoredRows, revise

STEPS = """
import os, signal, sys
from pathlib import Path
from training.catalog.catalog import Catalog
from training.importing import erasing

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

step, count, replace = {step!r}, 0, Catalog.replace
def die_at_second(*arguments):
    global count
    count += 1
    die() if count == 2 else replace(*arguments)

if step == "list": erasing.write_atomically = die
if step == "first": erasing._without = die
if step == "put": Catalog.save = die
if step == "sweep": Catalog._sweep = die
if step == "second": Catalog.replace = die_at_second
erasing.erase(Catalog(Path({data!r})), erasing.Erasure("mine@1", {sha256!r}, (0,), "ada"))
"""


def asked(version: Version, *samples: int) -> Erasure:
    return Erasure(version.reference, version.sha256, samples, "ada")


def named(catalog: Catalog, version: Version) -> str:
    """Return the picture of sample 0, as its bytes."""
    picture: bytes = map_images(catalog.store(version.sha256))[0][0].tobytes()
    return picture.hex()


def holders(catalog: Catalog, picture: str) -> list[str]:
    """Return the names of the stores with a picture."""
    return [path.name for path in catalog.stores.glob("*.safetensors") if bytes.fromhex(picture) in path.read_bytes()]


def test_its_pixels_leave_every_version_and_do_not_come_back(tmp_path: Path) -> None:
    """In another form, too, by its file; another data set keeps it. The rest stays as it was, and hashes hold."""
    source, catalog = save_tree(tmp_path / "source", 12), Catalog(tmp_path)
    first = imported(tmp_path, source)
    revise(catalog, "mine@1", {1: None}, "bob")
    small = imported(tmp_path, source, size=(14, 14))
    other = imported(tmp_path, source, "other", test=0.4)
    picture, before = named(catalog, first), StoredRows.of(catalog, first)
    name = file_of(source, bytes.fromhex(picture))
    shutil.copy(source / name, source / "ring" / "again.png")
    duplicated = imported(tmp_path, source, keep_duplicates=True)
    assert name in (catalog.pairs(duplicated.sha256)).read_text()
    changed = erase(catalog, asked(first, 0))
    assert [each.reference for each in changed] == ["mine@1", "mine@2", "mine@3", "mine@4"]
    assert [each.samples for each in changed] == [
        first.samples - 1, first.samples - 2, small.samples - 1, duplicated.samples - 2,
    ]  # fmt: skip
    assert holders(catalog, picture) == [f"{other.sha256}.safetensors"]
    assert {path.name.partition(".")[0] for path in catalog.stores.iterdir()} == {
        each.sha256 for each in catalog.versions()
    }
    assert all(hash_store(catalog.store(each.sha256)) == each.sha256 for each in catalog.versions())
    after = StoredRows.of(catalog, catalog.find("mine@1"))
    assert np.array_equal(after.pixels(np.arange(first.samples - 1)), before.pixels(np.arange(1, first.samples)))
    assert np.array_equal(after.labels, before.labels[1:])
    assert catalog.find("mine@1").former == [first.sha256]
    assert catalog.find("mine@1").created_at == first.created_at
    again = imported(tmp_path, source, validation=0.2)
    assert (again.reference, again.samples) == ("mine@5", first.samples - 1)
    assert again.report["refused"] == {
        "samples": 2, "reasons": [{"reason": "deleted before from this data set", "count": 2, "files": []}],
    }  # fmt: skip
    kept = [*(catalog.root / "names" / "mine").rglob("*"), *catalog.stores.glob("*.pairs.jsonl")]
    assert not any(name in path.read_text() for path in kept if other.sha256 not in path.name)


def file_of(source: Path, pixels: bytes) -> str:
    """Return the name of the file with a picture."""
    from PIL import Image

    return next(str(path.relative_to(source)) for path in source.rglob("*.png") if Image.open(path).tobytes() == pixels)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", ["list", "first", "put", "sweep", "second"])
def test_after_a_kill_the_same_request_goes_on(tmp_path: Path, step: str) -> None:
    """No other sample goes, though the numbers have changed in some versions by then."""
    catalog = Catalog(tmp_path / "data")
    first = imported(tmp_path / "data", save_tree(tmp_path / "source", 8))
    revise(catalog, "mine@1", {5: None}, "bob")
    picture = named(catalog, first)
    program = STEPS.format(step=step, data=str(tmp_path / "data"), sha256=first.sha256)
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == -signal.SIGKILL
    assert all(catalog.info(each).train_count for each in catalog.versions())
    erase(catalog, asked(first, 0))
    assert [each.samples for each in catalog.versions()] == [first.samples - 1, first.samples - 2]
    assert holders(catalog, picture) == []
    assert erase(catalog, asked(first, 0)) == []


def test_who_reads_an_old_content_keeps_it(tmp_path: Path) -> None:
    """As a job does: its file is there, by its lock, until it has ended; no version has it."""
    catalog, first = Catalog(tmp_path), imported(tmp_path, save_tree(tmp_path / "source", 6))
    held, picture = share(catalog.store(first.sha256)), named(catalog, first)
    assert held is not None
    erase(catalog, asked(first, 0))
    assert holders(catalog, picture) == [f"{first.sha256}.safetensors"]
    catalog.sweep()
    assert holders(catalog, picture) != []
    held.close()
    catalog.sweep()
    assert holders(catalog, picture) == []


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        (lambda version: [version.samples], r"there is no sample \d+ in mine@1; they are numbered from 0 to \d+"),
        (
            lambda version: range(version.samples - held_out(version), version.samples),
            "or for the test; remove the version instead",
        ),
        (lambda _: [], "name 1 to 20"),
    ],
)
def test_what_cannot_be_deleted_is_refused(
    tmp_path: Path, samples: Callable[[Version], Sequence[int]], says: str
) -> None:  # fmt: skip
    catalog, first = Catalog(tmp_path), imported(tmp_path, save_tree(tmp_path / "source", 6), test=0.15)
    with pytest.raises(InvalidConfig, match=says):
        erase(catalog, asked(first, *samples(first)))
    assert catalog.find("mine@1") == first
    assert not catalog.erased("mine").exists()


def test_no_more_than_the_most_samples_are_deleted(tmp_path: Path) -> None:
    """Those that are asked for count: the last one that fits is deleted, two are not."""
    catalog, first = Catalog(tmp_path), imported(tmp_path, save_tree(tmp_path / "source", 6))
    known = [
        Erased(content=f"{number:032x}", source="", of=f"{'0' * 64}:{number}", by="ada", at="2026-11-29")
        for number in range(MOST_ERASED - 1)
    ]
    catalog.erased("mine").write_bytes(ERASED.dump_json(tuple(known)))
    with pytest.raises(InvalidConfig, match=r"2 samples are to be deleted and 49,999 were before; .* at most 50,000"):
        erase(catalog, asked(first, 0, 1))
    assert erase(catalog, asked(first, 0))[0].samples == first.samples - 1
    assert len(read_erased(catalog, "mine")) == MOST_ERASED


def held_out(version: Version) -> int:
    return sum(each.test for each in version.classes)


def test_of_two_who_look_at_one_version_the_second_is_refused(tmp_path: Path) -> None:
    """Its numbers mean other samples by then."""
    catalog, first = Catalog(tmp_path), imported(tmp_path, save_tree(tmp_path / "source", 6))
    erase(catalog, asked(first, 0))
    with pytest.raises(InvalidConfig, match="samples of mine@1 were deleted since you looked at it"):
        erase(catalog, asked(first, 1))
    assert catalog.find("mine@1").samples == first.samples - 1


def test_duplicates_are_kept_in_pairs(tmp_path: Path) -> None:
    """By names and numbers, through a version with other labels, which decide whether they contradict."""
    source, catalog = save_tree(tmp_path / "source", 10), Catalog(tmp_path)
    for number in range(7):
        shutil.copy(source / "disc" / f"{number}.png", source / "disc" / f"copy {number}.png")
    first = imported(tmp_path, source, keep_duplicates=True)
    path = catalog.pairs(first.sha256)
    total, pairs = read_pairs(path, "exact", 0, 100)
    assert (total, len(pairs), read_pairs(path, "contradicting", 0, 100)) == (7, 7, (0, []))
    assert [each.names for each in read_pairs(path, "exact", 5, 5)[1]] == [each.names for each in pairs[5:]]
    rows = read_rows(catalog, first)
    assert all(rows[one]["content"].tolist() == rows[other]["content"].tolist() for one, other in
               (each.samples for each in pairs))  # fmt: skip
    second = revise(catalog, "mine@1", {pairs[0].samples[0]: "ring", pairs[1].samples[1]: None}, "ada")
    after = catalog.pairs(second.sha256)
    assert (read_pairs(after, "exact", 0, 0)[0], read_pairs(after, "contradicting", 0, 9)[0]) == (6, 1)
    moved = read_rows(catalog, second)
    for pair in read_pairs(after, "exact", 0, 9)[1]:
        assert moved[pair.samples[0]]["content"].tolist() == moved[pair.samples[1]]["content"].tolist()
