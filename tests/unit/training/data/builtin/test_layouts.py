"""Names and folders under which MNIST and its relatives lie on people's disks: found by content, in bounded time."""

import gzip
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support.files.mnist_files import FILES, idx_bytes

from preflight.errors import DatasetError
from training.data.builtin import search
from training.data.builtin.catalog import EMNIST_DIGITS, FASHION_MNIST, IDX_DATASETS, KMNIST, MNIST, QMNIST
from training.data.builtin.idx_dataset import IdxDataset
from training.data.builtin.names import Role, role_of
from training.data.prepare import explain_absence, prepare, prepared

Array = npt.NDArray[np.generic]


def made(dataset: IdxDataset, seed: int = 0) -> tuple[IdxDataset, dict[str, bytes]]:
    """Return a data set of ten images each, and the content of its files, with the checksums that the set publishes."""
    random, contents, files = np.random.default_rng(seed), {}, {}
    for role in ("train_images", "test_images", "train_labels", "test_labels"):
        file = getattr(dataset, role)
        shape = (10, *file.shape[1:])
        kind = np.int32 if file.dtype == ">i4" else np.uint8
        values = random.integers(0, 10, shape).astype(kind)
        if len(shape) < 3:
            values.reshape(10, -1)[:, 0] = np.roll(np.arange(10), seed)
        contents[file.name] = idx_bytes(values)
        md5 = hashlib.md5(contents[file.name], usedforsecurity=False).hexdigest()
        files[role] = replace(file, shape=shape, md5=file.md5 and md5, gz_md5=None)
    return replace(dataset, **files), contents


@pytest.fixture
def mnist(monkeypatch: pytest.MonkeyPatch) -> tuple[IdxDataset, dict[str, bytes]]:
    """A small MNIST whose test labels have a published checksum."""
    dataset, contents = made(MNIST)
    known = {dataset.test_labels.md5}
    monkeypatch.setattr(
        "training.data.builtin.idx_dataset.published_by", lambda digests: "mnist" if digests & known else None
    )
    return dataset, contents


def dotted(name: str) -> str:
    return name.replace("-idx", ".idx")


RENAMED: dict[str, Callable[[str], str]] = {
    "as published": lambda name: name,
    "dots": dotted,
    "capitals": lambda name: name.upper(),
    "underscores": lambda name: name.replace("-", "_"),
    "test for t10k": lambda name: name.replace("t10k", "test"),
    "short": lambda name: name.partition("-idx")[0],
    "prefix": lambda name: f"mnist-{name}",
    "a browser's second copy": lambda name: f"{name} (1)",
    "extension of its own": lambda name: f"{name}.bin",
    "dotted twice": lambda name: f"{dotted(name)}.idx3-ubyte" if "images" in name else name,
    "in a folder of its name": lambda name: f"{name}/{name}",
    "in a folder of its dotted name": lambda name: f"{dotted(name)}/{name}",
    "Kaggle": lambda name: f"archive/{dotted(name)}/{dotted(name)}",
    "torchvision, one level up": lambda name: f"raw/{name}",
    "torchvision, a level deeper": lambda name: f"data/MNIST/raw/{name}",
    "gzip": lambda name: f"gzip/{name}",
    "any folder": lambda name: f"some data/of ours/{name}",
}
PACKED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "raw": ("", lambda data: data),
    "gzip": (".gz", gzip.compress),
    "unpacked, with .gz": (".gz", lambda data: data),
    "packed, without .gz": ("", gzip.compress),
}  # fmt: skip


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("renamed", RENAMED)
def test_mnist_is_found_under_every_name(
    tmp_path: Path, mnist: tuple[IdxDataset, dict[str, bytes]], renamed: str, packed: str
) -> None:
    """And read with the same values; no other data set takes it for its own."""
    dataset, contents = mnist
    suffix, pack = PACKED[packed]
    for name, data in contents.items():
        path = tmp_path / f"{RENAMED[renamed](name)}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pack(data))
    assert len(set(dataset.sources(tmp_path))) == 4
    assert dataset.load(tmp_path, download=False).test.labels.tolist() == list(range(10))
    assert [other.name for other in IDX_DATASETS if other.name != "mnist" and other.sources(tmp_path)] == []


@pytest.mark.parametrize(("name", "role"), [
    ("train-images-idx3-ubyte", Role("", "train", "image")),
    ("T10K-Labels.IDX1-UBYTE.GZ", Role("", "test", "label")),
    ("train-labels-idx1-ubyte (2).gz", Role("", "train", "label")),
    ("emnist-digits-test-images-idx3-ubyte", Role("emnistdigits", "test", "image")),
    ("qmnist-train-labels-idx2-int", Role("qmnist", "train", "label")),
    ("test_image", Role("", "test", "image")),
    ("train-images.txt", None), ("mnist_train.csv", None), ("training", None), ("qmnist-train-labels.tsv.gz", None),
])  # fmt: skip
def test_a_name_says_which_file_it_is(name: str, role: Role | None) -> None:
    assert role_of(name) == role


@pytest.mark.parametrize(("dataset", "folder"), [
    (FASHION_MNIST, "FashionMNIST/raw"), (FASHION_MNIST, "fashion_mnist"), (FASHION_MNIST, "data/fashion/gzip"),
    (KMNIST, "KMNIST/raw"), (KMNIST, "kuzushiji-mnist"), (QMNIST, "anything"), (EMNIST_DIGITS, "EMNIST/raw"),
    (EMNIST_DIGITS, "gzip"),
])  # fmt: skip
def test_a_relative_is_known_by_its_folder_or_its_files(tmp_path: Path, dataset: IdxDataset, folder: str) -> None:
    """Nobody publishes checksums of their unpacked files; those with MNIST's names need a folder that says so."""
    small, contents = made(dataset)
    (tmp_path / folder).mkdir(parents=True)
    for name, data in contents.items():
        (tmp_path / folder / dotted(name)).write_bytes(data)
    assert len(small.sources(tmp_path)) == 4
    assert small.load(tmp_path, download=False).train.labels.tolist() == list(range(10))
    assert [other.name for other in IDX_DATASETS if other.name != dataset.name and other.sources(tmp_path)] == []


def test_content_decides_between_folders(tmp_path: Path, mnist: tuple[IdxDataset, dict[str, bytes]]) -> None:
    """A damaged download and the files of another data set stand in the way of no good copy."""
    dataset, contents = mnist
    other = made(FASHION_MNIST, seed=1)[1]
    (tmp_path / "z").mkdir()
    for name, data in contents.items():
        (tmp_path / f"{name}.gz").write_bytes(b"<!DOCTYPE html><title>404</title>")
        (tmp_path / name).write_bytes(other[name])
        (tmp_path / "z" / name).write_bytes(data)
    assert {path.parent for path in dataset.sources(tmp_path)} == {tmp_path / "z"}


def test_of_two_files_the_good_one_is_read(tmp_path: Path, mnist: tuple[IdxDataset, dict[str, bytes]]) -> None:
    dataset, contents = mnist
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        (tmp_path / f"{name}.gz").write_bytes(b"<html>")
        (tmp_path / f"._{name}").write_bytes(b"\0\5\x16\7")  # beside each file on a disk that macOS wrote
    assert dataset.sources(tmp_path) == tuple(tmp_path / file.name for file in dataset.files)


@pytest.mark.sampled(1)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("labels", [np.uint8, np.int32, np.int64])
@pytest.mark.parametrize("name", ["mnist.npz", "keras/datasets/MNIST (1).npz"])
def test_keras_archive_is_mnist_by_its_checksum(mnist_dir: Path, tmp_path: Path, name: str, labels: type) -> None:
    """The real one, as Keras and others save it; images and labels come out as from the IDX files."""
    expected = MNIST.load(mnist_dir, download=False)
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    save(path, expected.train.images[:, 0], expected.train.labels.astype(labels), expected.test.images[:, 0],
         expected.test.labels.astype(labels))  # fmt: skip
    assert set(MNIST.sources(tmp_path)) == {path}
    found = MNIST.load(tmp_path, download=False)
    for split in ("train", "test"):
        assert np.array_equal(getattr(found, split).images, getattr(expected, split).images)
        assert np.array_equal(getattr(found, split).labels, getattr(expected, split).labels)


def save(path: Path, x_train: Array, y_train: Array, x_test: Array, y_test: Array) -> None:
    np.savez_compressed(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def test_an_archive_of_other_content_is_not_used_and_named(tmp_path: Path) -> None:
    """Neither numbers of others, nor an archive that is none, nor one whose arrays say they are huge."""
    numbers = np.arange(10, dtype=np.uint8)
    save(tmp_path / "fashion.npz", numbers, numbers, numbers, numbers)
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04")
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (4000000000, 4000000000)}\n"
            archive.writestr(f"{name}.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(head)) + head)
    assert MNIST.sources(tmp_path) == ()
    said = MNIST.explain_absence(tmp_path)
    assert said == (
        f"mnist is not in {tmp_path} (found there but not used: broken.npz (not Keras' archive of mnist), "
        "fashion.npz (not Keras' archive of mnist), huge.npz (not Keras' archive of mnist))"
    )


def test_what_is_found_but_not_used_is_named(tmp_path: Path) -> None:
    """In the refusal and for the doctor; nothing is said of an empty folder, nor of images."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "1.png").touch()
    assert MNIST.explain_absence(tmp_path) is None
    (tmp_path / "mnist_train.csv").write_text("label,1x1\n")
    (tmp_path / "archive.zip").write_bytes(b"PK\x03\x04")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "train-images.idx3-ubyte").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(DatasetError) as caught:
        MNIST.load(tmp_path, download=False)
    assert caught.value.message == (
        f"mnist is not in {tmp_path} (found there but not used: raw/train-images.idx3-ubyte (is a pointer of Git LFS; "
        "`git lfs pull` fetches the file), archive.zip (unpack it), mnist_train.csv (begins with 0x6c616265, not with "
        "the magic number of an IDX file)); put the files there or allow the download"
    )


def test_web_pages_under_the_names_of_the_files_are_damage(tmp_path: Path) -> None:
    """They are in the place of the data set: nothing is downloaded behind the user's back, and the doctor says so."""
    for name in FILES:
        (tmp_path / f"{name}.gz").write_bytes(b"<!DOCTYPE html><title>404</title>")
    expected = f"{tmp_path / FILES[0]}.gz is damaged: it is a web page"
    assert str(MNIST.explain_absence(tmp_path)).startswith(expected)
    with pytest.raises(DatasetError, match="it is a web page, not an IDX file"):
        MNIST.load(tmp_path, download=True)


def test_a_huge_folder_is_not_walked(tmp_path: Path) -> None:
    """Folders of single images are left after a bounded number of entries, which is said; so are endless links."""
    for number in range(search.MAX_FOLDER_ENTRIES + 500):
        (tmp_path / f"{number}.png").touch()
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "itself").symlink_to(tmp_path / "itself")
    seen = search.look(tmp_path)
    assert search.MAX_ENTRIES - seen.left <= (search.MAX_FOLDER_ENTRIES + 1) * (search.MAX_DEPTH + 1)
    for folder in range(6):
        (tmp_path / f"{folder}").mkdir()
        for number in range(search.MAX_FOLDER_ENTRIES):
            (tmp_path / f"{folder}" / f"{number}.png").touch()
    assert not search.look(tmp_path).is_whole
    assert "only 5,000 entries were looked at" in str(MNIST.explain_absence(tmp_path))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user who may not read a folder")
@pytest.mark.parametrize("closed", [".", "MNIST"])
def test_a_folder_that_cannot_be_read_is_named(mnist_dir: Path, closed: str) -> None:
    """Not "is not there", and no download beside it; a folder that is nothing to do with it is only mentioned."""
    script = (
        "import sys; from pathlib import Path\nfrom training.data.builtin.catalog import MNIST\nimport os\n"
        "os.setgid(54321); os.setuid(54321)\n"
        "try:\n    MNIST.load(Path(sys.argv[1]), download=True)\nexcept Exception as error:\n    print(error)\n"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / closed
        folder.mkdir(exist_ok=True)
        shutil.copy(mnist_dir / f"{FILES[0]}.gz", folder)
        Path(name).chmod(0o755)
        folder.chmod(0o700)
        environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-P", "-c", script, name], env=environment, capture_output=True, text=True, cwd="/"
        )
    why, remedy = (
        "cannot be read by user 54321 (Permission denied)",
        "make it readable (with SELinux, mount it with :z)",
    )
    assert done.stdout == f"{folder} {why}; {remedy}\n"


def test_a_copy_prepared_earlier_is_not_used_without_a_word(
    tmp_path: Path, mnist: tuple[IdxDataset, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store stays usable where its files have gone, and what lies there instead is said."""
    dataset, contents = mnist
    monkeypatch.setattr("training.data.prepare._dataset", lambda name: dataset)  # noqa: ARG005
    data, cache, other = (tmp_path / name for name in ("data", "cache", "other"))
    data.mkdir()
    other.mkdir()
    for name, content in contents.items():
        (data / dotted(name)).write_bytes(content)
    store = prepare("mnist", data, cache, download=False)
    assert prepared("mnist", data, cache) == store
    assert explain_absence("mnist", data) is None
    (other / "mnist.csv").write_text("5,0,0")
    assert prepared("mnist", other, cache) == store
    assert "found there but not used: mnist.csv" in str(explain_absence("mnist", other))
