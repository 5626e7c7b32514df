"""The commands of docs/how-to/data.md, each on a real source of its kind."""

import csv
import json
import os
import re
import shlex
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.files.pictures import pixels, save_tree
from support.worker.command_line import run

from training.catalog.catalog import Catalog

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "data.md"
COMMANDS = re.findall(r"\| `(preflight data add [^`]+)` \|$", PAGE.read_text(), re.MULTILINE)
VERSIONS = re.findall(r"^    (preflight data (?:list|diff|alias|remove).*)$", PAGE.read_text(), re.MULTILINE)


def labelled(path: Path, table: str) -> None:
    tree = save_tree(path, 10)
    rows = [{"file": str(file.relative_to(tree)), "label": file.parent.name} for file in sorted(tree.rglob("*.png"))]
    if table.endswith(".csv"):
        with (path / table).open("w", newline="") as file:
            writer = csv.DictWriter(file, ("file", "label"))
            writer.writeheader()
            writer.writerows(rows)
    else:
        (path / table).write_text("\n".join(map(json.dumps, rows)))


def kaggle(path: Path) -> None:
    images, labels = pixels(10)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", *(f"pixel{number}" for number in range(784))])
        writer.writerows([label, *image.ravel()] for image, label in zip(images, labels, strict=True))


def arrays(path: Path) -> None:
    images, labels = pixels(10)
    np.savez(path, images=images, labels=labels)


def hub(path: Path) -> None:
    tree = save_tree(path.parent / "tree", 10)
    files = sorted(tree.rglob("*.png"))
    table = {"image": [{"bytes": file.read_bytes(), "path": file.name} for file in files],
             "label": [file.parent.name for file in files]}  # fmt: skip
    path.mkdir()
    pq.write_table(pa.table(table), path / "train-00000-of-00001.parquet")


def idx(path: Path) -> None:
    images, labels = pixels(10)
    path.mkdir()
    (path / "train-images-idx3-ubyte").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, *images.shape) + images.tobytes())
    (path / "train-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, len(labels)) + labels.tobytes())


def packed(path: Path) -> None:
    tree = save_tree(path.parent / "tree", 10)
    with zipfile.ZipFile(path, "w") as archive:
        for file in tree.rglob("*.png"):
            archive.write(file, file.relative_to(tree))


SOURCES: dict[str, Callable[[Path], object]] = {
    "./photos": lambda path: save_tree(path, 10),
    "./labelled": lambda path: labelled(path, "labels.csv"),
    "./studio": lambda path: labelled(path, "labels.jsonl"),
    "./train.csv": kaggle, "./arrays.npz": arrays, "./hub": hub, "./idx": idx, "./packed.zip": packed,
}  # fmt: skip


@pytest.mark.usefixtures("command_environment")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_row_of_the_table(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, *words = shlex.split(command)
    SOURCES[words[-1]](tmp_path / words[-1])
    monkeypatch.chdir(tmp_path)
    done = run(*words, "--json")
    assert done.exit_code == 0, done.stderr
    added = json.loads(done.stdout)
    assert (added["dataset"], len(added["classes"])) == (f"{words[2]}@1", 4)
    assert sum(each[side] for each in added["classes"] for side in ("train", "validation", "test")) == 40


def test_each_row_is_tried() -> None:
    assert len(COMMANDS) == len(SOURCES) == 8
    assert {shlex.split(command)[-1] for command in COMMANDS} == {*SOURCES}


@pytest.mark.usefixtures("command_environment")
def test_the_commands_about_versions(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "photos", 10)
    assert run("data", "add", "photos", str(source)).exit_code == 0
    save_tree(source, 3, first=10)
    os.rename(source / "disc" / "0.png", source / "ring" / "moved.png")  # noqa: PTH104 - one line
    (source / "square" / "1.png").unlink()
    assert run("data", "add", "photos", str(source)).exit_code == 0
    said = {}
    for command in VERSIONS:
        _, *words = shlex.split(command)
        done = run(*words, *(("--force",) if "remove" in words else ()), "--json")
        assert done.exit_code == 0, done.stderr
        said[words[1]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["dataset"] for each in said["list"]] == ["photos@1", "photos@2"]
    (difference,) = said["diff"]
    assert {name: difference[name] for name in ("added", "removed", "relabelled", "classes_added")} == {
        "added": 12, "removed": 1, "relabelled": 1, "classes_added": [],
    }  # fmt: skip
    assert said["alias"] == [{"alias": "production", "dataset": "photos@1", "version": "photos@1"}]
    assert said["remove"] == [{"removed": ["photos@2"]}]
    catalog = Catalog(tmp_path / "data")
    assert catalog.find("production").reference == "photos@1"
    assert "stands for photos@1" in run("data", "remove", "photos", "--force").stderr
    assert run("data", "add", "photos", str(source)).stdout.startswith("data set      photos@3")
    (tmp_path / "changes.csv").write_text("0,ring\n1\n")
    changed = run("data", "relabel", "photos@3", str(tmp_path / "changes.csv"), "--by", "ada", "--json")
    assert json.loads(changed.stdout)["report"]["revised"]["by"] == "ada"
    assert "is not the newest version" in run("data", "relabel", "photos@3", str(tmp_path / "changes.csv")).stderr
    assert run("data", "erase", "photos@4", "2", input="n\n").exit_code == 1
    erased = run("data", "erase", "photos@4", "2", "--yes", "--json")
    assert "not known, as Redis does not answer: jobs waiting or running" in erased.stderr
    assert "photos@4" in json.loads(erased.stdout)["versions"]
    assert "were deleted" not in run("data", "erase", "photos@4", "2", "--yes").stderr
