"""Imports that are killed, that meet a full disk or one another: nothing is half there, and work is not lost."""

import gzip
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from support.files.pictures import imported, pixels, run, save_tree
from support.files.small_disk import megabyte

from preflight.errors import ChildFailed, DatasetError
from preflight.pictures.form import Form
from training.catalog.catalog import Catalog
from training.data.dataset_store import open_dataset
from training.importing.decoding import pool
from training.importing.decoding.pool import Pool
from training.importing.decoding.task import Task
from training.importing.difference import compare
from training.importing.form import TASKS
from training.importing.shards import Decoded, Shard

STEPS = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.files import pictures
from training.catalog.catalog import Catalog
from training.importing import run
from training.importing.building import store
from training.importing.decoding.pool import Pool

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def die_after(function):
    def call(*arguments, **named):
        found = function(*arguments, **named)
        die()
    return call

step = {step!r}
if step == "form": run._decode = die
if step == "first task": run.Decoded.read = die_after(run.Decoded.read)
if step == "tasks": run._build = die
if step == "store": store.write_rows = die
if step == "rows": Catalog.register = die
if step == "put": Catalog._register = die
if step == "registered": run._discard = die
pictures.imported(Path({data!r}), Path({source!r}))
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("step", ["form", "tasks", "store", "rows", "put", "registered"])
def test_a_kill_at_any_step_leaves_nothing_half_registered(tmp_path: Path, step: str) -> None:
    """The next try of the same import ends as an undisturbed one."""
    source = save_tree(tmp_path / "source", 20)
    expected = imported(tmp_path / "other", source)
    data = tmp_path / "data"
    program = STEPS.format(tests=str(Path(__file__).parents[3]), step=step, data=str(data), source=str(source))
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    catalog = Catalog(data)
    assert [version.reference for version in catalog.versions()] == (["mine@1"] if step == "registered" else [])
    work = [*(data / "imported" / "work" / "mine").glob("*/*.json")]
    version, is_new = run(data, source)
    assert (version.sha256, version.reference, is_new) == (expected.sha256, "mine@1", step != "registered")
    assert len(work) >= (1 if step == "form" else 2)
    assert not (data / "imported" / "work" / "mine").exists()
    assert len([*catalog.stores.iterdir()]) == 3
    open_dataset(catalog.info(version).path)


def test_decoded_tasks_are_not_decoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a kill only what is missing or has changed is read."""
    source, data = save_tree(tmp_path / "source", 300), tmp_path / "data"
    program = STEPS.format(tests=str(Path(__file__).parents[3]), step="tasks", data=str(data), source=str(source))
    subprocess.run([sys.executable, "-c", program], capture_output=True)
    asked: list[str] = []
    undisturbed = Pool.run

    def counted(self: Pool, tasks: list[Task], check: Callable[[], None] = lambda: None) -> object:
        asked.extend(task.name for task in tasks)
        return undisturbed(self, tasks, check)

    monkeypatch.setattr(Pool, "run", counted)
    done = sorted((data / "imported" / "work" / "mine").glob("*/*.rows.npy"))
    assert len(done) == TASKS
    time.sleep(0.01)
    (source / "disc" / "3.png").write_bytes((source / "disc" / "4.png").read_bytes())
    version = imported(data, source)
    assert len(asked) == 1
    assert version.sha256 == imported(tmp_path / "other", source).sha256


def kill_after_decoding(data: Path, source: Path) -> None:
    program = STEPS.format(tests=str(Path(__file__).parents[3]), step="tasks", data=str(data), source=str(source))
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    time.sleep(0.01)


Pictures = npt.NDArray[np.uint8]


def tree_of(root: Path, images: Pictures, labels: Pictures) -> Path:
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (root / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / str(label) / f"{number % 10}.png", compress_level=0)
    return root


def zip_of(root: Path, images: Pictures, labels: Pictures) -> Path:
    tree = tree_of(root / "tree", images, labels)
    with zipfile.ZipFile(root / "source.zip", "w") as archive:
        for path in sorted(tree.rglob("*.png")):
            archive.write(path, path.relative_to(tree))
    shutil.rmtree(tree)
    return root / "source.zip"


def npy_of(root: Path, images: Pictures, labels: Pictures) -> Path:
    root.mkdir(exist_ok=True)
    np.save(root / "images.npy", images)
    np.save(root / "labels.npy", labels)
    return root


def npz_of(root: Path, images: Pictures, labels: Pictures) -> Path:
    np.savez(root / "source.npz", images=images, labels=labels)
    return root / "source.npz"


def idx_of(root: Path, images: Pictures, labels: Pictures) -> Path:
    for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
        head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
        (root / f"train-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    return root


def csv_of(root: Path, images: Pictures, labels: Pictures) -> Path:
    rows = [",".join(map(str, (label, *image.ravel()))) for image, label in zip(images, labels, strict=True)]
    (root / "source.csv.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    return root / "source.csv.gz"


def parquet_of(root: Path, images: Pictures, labels: Pictures) -> Path:
    cells = []
    for image in images:
        file = io.BytesIO()
        Image.fromarray(image).save(file, "PNG")
        cells.append(file.getvalue())
    pq.write_table(pa.table({"image": cells, "label": labels}), root / "source.parquet")
    return root / "source.parquet"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("side", [28, 20])
@pytest.mark.parametrize("make", [npy_of, zip_of, tree_of, npz_of, idx_of, csv_of, parquet_of])
def test_a_source_that_changes_after_a_kill_is_read_again(
    tmp_path: Path, make: Callable[[Path, Pictures, Pictures], Path], side: int
) -> None:
    """Another source takes its place, whose files are older than what was decoded: their labels or sizes count."""
    images, labels = pixels(10)
    other, _ = pixels(10, side=side)
    (root := tmp_path / "source").mkdir()
    (new := tmp_path / "new").mkdir()
    source, _ = make(root, images, labels), make(new, other, np.roll(labels, 10))
    for path in new.rglob("*"):
        os.utime(path, (1e9, 1e9))
    time.sleep(0.01)
    kill_after_decoding(tmp_path / "data", source)
    root.rename(tmp_path / "old")
    new.rename(root)
    version = imported(tmp_path / "data", source)
    assert (version.shape, version.sha256) == ((1, side, side), imported(tmp_path / "other", source).sha256)


def test_labels_that_change_after_a_kill_are_read_again(tmp_path: Path) -> None:
    """Their file is another one than that of the pictures."""
    images, labels = pixels(10)
    source = npy_of(tmp_path / "source", images, labels)
    kill_after_decoding(tmp_path / "data", source)
    np.save(source / "labels.npy", np.roll(labels, 10))
    assert imported(tmp_path / "data", source).sha256 == imported(tmp_path / "other", source).sha256


def test_the_first_refused_sample_is_named_in_whatever_order_tasks_end(tmp_path: Path) -> None:
    """Here the first task ends last, and has more samples than the last one."""
    source = tmp_path / "source"
    files = [f"{path.parent.name}/{path.name}" for path in sorted(save_tree(source, 11).rglob("*.png"))]
    (source / "labels.csv").write_text("\n".join(["file,label", *(f"{name},{name[:4]}" for name in files)]))
    kill_after_decoding(tmp_path / "data", source)
    for place in (15, 16):
        (source / files[place]).write_bytes(b"no picture")
    with pytest.raises(DatasetError, match=rf"2 of 44 samples are refused \(2: is text, no picture, {files[15]} first"):
        imported(tmp_path / "data", source)


def test_a_changed_folder_is_read_again_only_where_it_has_changed(tmp_path: Path) -> None:
    """A picture whose file has its size and time still is taken from the version before: here another one is there."""
    source, data = save_tree(tmp_path / "source", 30), tmp_path / "data"
    first = imported(data, source, keep_duplicates=True)
    kept, replaced = source / "disc" / "3.png", source / "disc" / "4.png"
    content, status = kept.read_bytes(), kept.stat()
    kept.write_bytes(b"x" * len(content))  # cannot be decoded
    os.utime(kept, ns=(status.st_atime_ns, status.st_mtime_ns))
    replaced.write_bytes((source / "ring" / "4.png").read_bytes())
    save_tree(source, 2, first=30)
    second = imported(data, source, keep_duplicates=True)
    assert (second.reference, second.samples - first.samples) == ("mine@2", 8)
    found = compare(Catalog(data), first, second)
    assert (found["added"], found["removed"]) == (8, 1)
    kept.write_bytes(content)
    assert second.sha256 == imported(tmp_path / "other", source, keep_duplicates=True).sha256
    assert imported(data, source, size=(14, 14)).shape == (1, 14, 14)  # another form: each is read


def test_two_imports_of_one_name_at_once(tmp_path: Path) -> None:
    source = save_tree(tmp_path / "source", 5)
    with (
        Catalog(tmp_path / "data").importing("mine"),
        pytest.raises(DatasetError, match="another process is importing 'mine'; wait until it has ended"),
    ):
        imported(tmp_path / "data", source)
    assert imported(tmp_path / "data", source, name="other").reference == "other@1"
    assert imported(tmp_path / "data", source).reference == "mine@1"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with megabyte(tmp_path / "megabyte") as directory:
        yield directory


@pytest.mark.parametrize("count", [120, 180, 400])
def test_a_full_disk_ends_the_import_with_nothing_left(disk: Path, tmp_path: Path, count: int) -> None:
    """While it unpacks, decodes or writes the store; a smaller one fits afterwards."""
    for name, each in (("large", count), ("small", 40)):
        images, labels = pixels(each)
        np.savez_compressed(tmp_path / f"{name}.npz", images=images, labels=labels)
    with pytest.raises(DatasetError, match=r"cannot be written or read \(No space left on device\); make room in "):
        imported(disk / "data", tmp_path / "large.npz")
    assert [path for path in (disk / "data").rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    assert imported(disk / "data", tmp_path / "small.npz").samples == 160


FORM = Form(height=28, width=28, channels=1, invert=False)


def test_a_picture_that_kills_its_child_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its task are decoded by another child."""
    source = save_tree(tmp_path / "source", 4, ("a", "b"))
    files = tuple(sorted(str(path.relative_to(source)) for path in source.rglob("*.png")))
    os.mkfifo(source / "a" / "hangs.png")
    shard = Shard(kind="files", path=str(source), files=(*files[:3], "a/hangs.png", *files[3:]), labels=(0,) * 9,
                  names=("a",))  # fmt: skip
    (work := tmp_path / "work").mkdir()
    # A child that ends whenever it is at the fourth sample, as one does that decodes a file that kills it.
    module = tmp_path / "site" / "dying_child.py"
    module.parent.mkdir()
    module.write_text(
        "import os, signal, time\n"
        "from training.importing.decoding import child, progress\n"
        "begins = progress.Progress.begins\n"
        "def dying(self, item):\n"
        "    found = begins(self, item)\n"
        "    if item == 3 and found: KILL\n"
        "    return found\n"
        "progress.Progress.begins = dying\n"
        "child.main()\n".replace("KILL", "os.kill(os.getpid(), signal.SIGKILL)")
    )
    monkeypatch.setattr(pool, "MODULE", "dying_child")
    environment = {**os.environ, "PYTHONPATH": str(module.parent)}
    with Pool(work, 1, environment) as children:
        answers = [*children.run([Task("one", shard, FORM)])]
    assert len(answers) == 1
    done = Decoded.read(work / "one.json")
    assert done is not None
    assert (done.rows, done.refused) == (8, ((3, "ended the decoding process (signal 9)"),))
    module.write_text(module.read_text().replace("os.kill(os.getpid(), signal.SIGKILL)", "time.sleep(60)"))
    with Pool(work, 1, environment, seconds=0.5) as children:
        assert len([*children.run([Task("two", shard, FORM)])]) == 1
    late = Decoded.read(work / "two.json")
    assert late is not None
    assert late.refused == ((3, "took longer than 0.5 s to decode"),)


def test_a_child_that_cannot_start_ends_the_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MODULE", "no_such_module_anywhere")
    shard = Shard(kind="files", path=str(tmp_path), files=("a.png",), labels=(0,), names=("a",))
    with (
        Pool(tmp_path, 1, {**os.environ}) as children,
        pytest.raises(ChildFailed, match="No module named no_such_module_anywhere"),
    ):
        list(children.run([Task("one", shard, FORM)]))
