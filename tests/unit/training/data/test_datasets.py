"""Data sets: real MNIST on disk, every way it can be damaged or missing, and the formats of the others."""

import contextlib
import dataclasses
import gzip
import hashlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.datasets import load_digits
from support.files.mnist_files import FILES, idx_bytes, link_mnist, unpack
from torchvision import datasets

from preflight.errors import DatasetError
from training.data.builtin.catalog import EMNIST_DIGITS, FASHION_MNIST, IDX_DATASETS, KMNIST, MNIST, QMNIST
from training.data.builtin.digits import DIGITS
from training.data.builtin.download import NETWORK_TIMEOUT
from training.data.builtin.idx_dataset import IdxDataset
from training.data.builtin.idx_file import IdxFile
from training.data.datasets import Dataset, LabeledImages, Samples

LABELS = "t10k-labels-idx1-ubyte"


@pytest.fixture
def copy(mnist_dir: Path, tmp_path: Path) -> Path:
    """Return a directory in which each MNIST file is a link to the real one, for one to be replaced."""
    return link_mnist(mnist_dir, tmp_path / "data")


def small(dataset: IdxDataset) -> IdxDataset:
    """Return `dataset` with ten images per split and no checksums, so that its files can be made here."""

    def shrunk(file: IdxFile) -> IdxFile:
        return dataclasses.replace(file, shape=(10, *file.shape[1:]), md5=None, gz_md5=None)

    return dataclasses.replace(
        dataset, train_images=shrunk(dataset.train_images), train_labels=shrunk(dataset.train_labels),
        test_images=shrunk(dataset.test_images), test_labels=shrunk(dataset.test_labels),
    )  # fmt: skip


def contents(dataset: IdxDataset) -> dict[str, npt.NDArray[np.generic]]:
    random = np.random.default_rng(0)
    made: dict[str, npt.NDArray[np.generic]] = {}
    for file in dataset.files:
        if file.shape[1:] == (28, 28):
            made[file.name] = random.integers(0, 256, file.shape, dtype=np.uint8)
        elif len(file.shape) == 1:
            made[file.name] = np.arange(10, dtype=np.uint8)
        else:
            table = random.integers(256, 100_000, file.shape, dtype=np.int32)
            table[:, 0] = np.arange(10)
            made[file.name] = table
    return made


def refused(dataset: Dataset, data_dir: Path, *, download: bool = False) -> DatasetError:
    """Load, expect a one-sentence `DatasetError`, and return it."""
    with pytest.raises(DatasetError) as caught:
        dataset.load(data_dir, download=download)
    assert "\n" not in caught.value.message
    return caught.value


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve `folder` over HTTP on the loopback and yield its URL."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def unused_url() -> Iterator[str]:
    """Return a loopback URL that refuses connections at once: bound by nobody who listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}/"


def test_real_mnist_is_read_whole(mnist_dir: Path) -> None:
    """The four real files give 60,000 and 10,000 images with the labels that everybody knows."""
    samples = MNIST.load(mnist_dir, download=False)
    assert samples.train.images.shape == (60_000, 1, 28, 28)
    assert samples.test.images.shape == (10_000, 1, 28, 28)
    assert samples.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert samples.test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert np.bincount(samples.train.labels).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    assert samples.shape == MNIST.shape
    assert (samples.classes, samples.train.images.max()) == (10, 255)


def flipped(data: bytes, at: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= bit
    return bytes(changed)


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip byte flipped": (f"{LABELS}.gz", lambda packed: flipped(packed, len(packed) // 2, 0x10)),
    "recompressed with another label": (
        f"{LABELS}.gz", lambda packed: gzip.compress(flipped(gzip.decompress(packed), 1234, 1)),
    ),
    "raw byte flipped": (LABELS, lambda packed: flipped(gzip.decompress(packed), 1234, 1)),
    "raw of other dimensions": (LABELS, lambda _: idx_bytes(np.zeros((10, 1000), dtype=np.uint8))),
}  # fmt: skip
"""Names of files, and what is made of the compressed test labels."""


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_file_is_refused_with_a_remedy(copy: Path, how: str) -> None:
    """However one of the four files is damaged, the error names it and says to delete or replace it."""
    name, damage = DAMAGE[how]
    packed = copy / f"{LABELS}.gz"
    data = damage(packed.read_bytes())
    packed.unlink()
    (copy / name).write_bytes(data)
    error = refused(MNIST, copy, download=True)  # a wrong file is never replaced behind the user's back
    assert error.field == str(copy / name)
    assert f"{copy / name} is damaged" in error.message
    assert "delete it so that it is fetched again, or replace it" in error.message


def test_a_file_of_another_checksum_is_refused(tmp_path: Path) -> None:
    """Small files made here: this needs no real ones."""
    dataset = small(MNIST)
    for name, values in contents(dataset).items():
        (tmp_path / name).write_bytes(idx_bytes(values))
    dataset.load(tmp_path, download=False)
    images = dataclasses.replace(dataset.test_images, md5="0" * 32)
    error = refused(dataclasses.replace(dataset, test_images=images), tmp_path)
    assert error.field == str(tmp_path / images.name)
    assert f"not {images.md5}" in error.message


def test_one_missing_file_is_named(copy: Path) -> None:
    """With three of the four files there, the error names the fourth and where it should be."""
    (copy / f"{LABELS}.gz").unlink()
    assert MNIST.sources(copy) == ()
    message = refused(MNIST, copy).message
    assert f"mnist lacks {LABELS}[.gz] in {copy}" in message


@pytest.mark.parametrize("raw", [False, True])
def test_mnist_in_the_data_directory_is_not_read_as_fashion_mnist(copy: Path, raw: bool) -> None:
    """Files with the same names are told apart by their checksums, raw or compressed."""
    for name in FILES if raw else ():
        unpack(copy, name)
    for other in (FASHION_MNIST, KMNIST):
        assert other.sources(copy) == ()
        assert refused(other, copy).message.startswith(f"{other.name} is not in {copy};")
    assert len(MNIST.sources(copy)) == 4


def test_mnist_in_the_folder_of_fashion_mnist_is_refused(mnist_dir: Path, tmp_path: Path) -> None:
    """Compressed files fail its checksums; raw ones, for which it has none, are known as mnist's."""
    folder = link_mnist(mnist_dir, tmp_path / "fashion-mnist")
    assert "MD5" in refused(FASHION_MNIST, tmp_path).message
    images = unpack(folder, FILES[0])
    error = refused(FASHION_MNIST, tmp_path)
    assert error.field == str(images)
    assert "it is a file of mnist" in error.message


@pytest.mark.parametrize("dataset", IDX_DATASETS, ids=lambda dataset: dataset.name)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_each_data_set_is_read_from_its_files(tmp_path: Path, dataset: IdxDataset, suffix: str) -> None:
    """Names, types and columns are each set's own; EMNIST's images come out with rows and columns swapped."""
    dataset, made = small(dataset), contents(small(dataset))
    folder = tmp_path / dataset.torchvision / "raw"
    folder.mkdir(parents=True)
    for name, values in made.items():
        data = idx_bytes(values)
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    samples = dataset.load(tmp_path, download=False)
    for split, images in ((samples.train, dataset.train_images), (samples.test, dataset.test_images)):
        stored = made[images.name]
        upright = stored.swapaxes(1, 2) if dataset.name == "emnist" else stored
        assert np.array_equal(split.images[:, 0], upright)
        assert split.labels.tolist() == list(range(10))


@pytest.mark.parametrize("label", [-1, 10, 256])
def test_a_label_out_of_range_is_refused(tmp_path: Path, label: int) -> None:
    """A label that is no class is refused under its file's name, also one that would wrap into range."""
    dataset, made = small(QMNIST), contents(small(QMNIST))
    table = np.array(made[QMNIST.test_labels.name], dtype=np.int32)
    table[3, 0] = label
    made[QMNIST.test_labels.name] = table
    for name, values in made.items():
        (tmp_path / name).write_bytes(idx_bytes(values))
    error = refused(dataset, tmp_path)
    assert error.field == str(tmp_path / QMNIST.test_labels.name)
    assert f"a label in it is {label}" in error.message


def test_checksums_and_names_are_those_of_torchvision() -> None:
    """Every file name and MD5 written down here is in torchvision's own list."""
    for dataset in (MNIST, FASHION_MNIST, KMNIST):
        theirs = dict(getattr(datasets, dataset.torchvision).resources)
        assert {f"{file.name}.gz": file.gz_md5 for file in dataset.files} == theirs
    listed = datasets.QMNIST.resources
    theirs = {url.rsplit("/", 1)[1]: md5 for part in ("train", "test") for url, md5 in listed[part]}
    assert {f"{file.name}.gz": file.gz_md5 for file in QMNIST.files} == theirs
    assert "digits" in datasets.EMNIST.splits


def test_download_without_network_fails_with_a_remedy(
    tmp_path: Path, unused_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what is missing, why it could not be fetched and what to do; nothing is left over."""
    # The real mirrors may answer, slowly or not at all; a port that refuses fails at once and everywhere.
    monkeypatch.setattr(datasets.MNIST, "mirrors", [unused_url, unused_url])
    error = refused(MNIST, tmp_path, download=True)
    assert error.message == (
        f"mnist is not in {tmp_path} and could not be downloaded (no network: Connection refused); "
        "put the files there or use the data set digits"
    )
    assert error.field == "mnist"
    assert list(tmp_path.iterdir()) == []
    assert socket.getdefaulttimeout() is None


def test_download_from_a_silent_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and never answers ends in the same kind of sentence, after the timeout."""
    monkeypatch.setattr("training.data.builtin.download.NETWORK_TIMEOUT", 0.2)  # not ten seconds of a test's time
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(datasets.MNIST, "mirrors", [f"http://127.0.0.1:{silent.getsockname()[1]}/"])
        assert "could not be downloaded (" in refused(MNIST, tmp_path, download=True).message
    assert NETWORK_TIMEOUT == 10


def test_files_are_downloaded_verified_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """From a real HTTP server, files arrive in `<name>/`, without a word on stdout; a wrong one does not."""
    dataset, mirror, data_dir = small(MNIST), tmp_path / "mirror", tmp_path / "data"
    mirror.mkdir()
    made = contents(dataset)
    for name, values in made.items():
        (mirror / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(values)))
    listed = [(path.name, hashlib.md5(path.read_bytes()).hexdigest()) for path in mirror.iterdir()]  # noqa: S324 - the published checksums
    monkeypatch.setattr(datasets.MNIST, "resources", listed)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with served(mirror) as url:
        monkeypatch.setattr(datasets.MNIST, "mirrors", [url])
        samples = dataset.load(data_dir, download=True)
        (mirror / f"{LABELS}.gz").write_bytes(b"not what the list says")
        assert "could not be downloaded" in refused(dataset, tmp_path / "other", download=True).message
    assert np.array_equal(samples.train.images[:, 0], made[FILES[0]])
    assert sorted(path.name for path in dataset.sources(data_dir)) == sorted(f"{name}.gz" for name in FILES)
    assert [path.name for path in data_dir.iterdir()] == ["mnist"]
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("module", "dataset", "extra"), [("torchvision", MNIST, "train"), ("sklearn.datasets", DIGITS, "demo")]
)
def test_without_its_library_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, dataset: Dataset, extra: str
) -> None:
    """Where torchvision or scikit-learn is not installed, the error says what to install."""
    monkeypatch.setitem(sys.modules, module, None)  # how Python itself marks what cannot be imported
    assert f"pip install ./client '.[{extra}]'" in refused(dataset, tmp_path, download=True).message


def test_a_data_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """What stands in the way of a download is said in one sentence."""
    (tmp_path / "file").write_text("in the way")
    data_dir = tmp_path / "file" / "data"
    assert f"{data_dir} cannot be written (Not a directory)" in refused(MNIST, data_dir, download=True).message


def test_digits_are_real_digits_enlarged(tmp_path: Path) -> None:
    """1,797 images of 28x28 using the whole range, classes balanced within a tenth in training."""
    samples = DIGITS.load(tmp_path, download=False)
    assert samples.train.images.shape == (1500, 1, 28, 28)
    assert samples.test.images.shape == (297, 1, 28, 28)
    assert (samples.train.images.min(), samples.train.images.max()) == (0, 255)
    counts = np.bincount(samples.train.labels, minlength=10)
    assert (counts.min() > 135) and (counts.max() < 165)
    assert np.bincount(samples.test.labels, minlength=10).min() > 20
    assert DIGITS.sources(tmp_path) == ()


def test_digits_are_enlarged_by_the_documented_formula(tmp_path: Path) -> None:
    """The images are those of torch's bilinear interpolation with half-pixel centres, within rounding."""
    images, _ = load_digits(return_X_y=True)
    small_images = torch.from_numpy(images).reshape(-1, 1, 8, 8) * (255 / 16)
    expected = torch.nn.functional.interpolate(small_images, size=(28, 28), mode="bilinear")
    found = torch.from_numpy(DIGITS.load(tmp_path, download=False).train.images)
    assert (found - expected[:1500]).abs().max() <= 0.5 + 1e-9


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (np.zeros((3, 28, 28), np.uint8), np.zeros(3, np.uint8)),
        (np.zeros((3, 1, 28, 28), np.uint8), np.zeros(2, np.uint8)),
        (np.zeros((3, 1, 28, 28), np.uint8), np.zeros((3, 1), np.uint8)),
        (np.zeros((3, 1, 28, 28), np.float32), np.zeros(3, np.uint8)),
        (np.zeros((3, 1, 28, 28), np.uint8), np.zeros(3, np.int64)),
        (np.zeros((0, 1, 28, 28), np.uint8), np.zeros(0, np.uint8)),
    ],
)
def test_labeled_images_are_validated(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> None:
    """Wrong rank, lengths, types or no samples at all cannot become a `LabeledImages`."""
    with pytest.raises(ValueError, match="must be uint8"):
        LabeledImages(images, labels)


def test_samples_are_validated() -> None:
    """Both splits have one shape, and labels are below the number of classes."""
    tall = LabeledImages(np.zeros((2, 1, 9, 8), np.uint8), np.zeros(2, np.uint8))
    flat = LabeledImages(np.zeros((2, 1, 8, 8), np.uint8), np.array([0, 10], np.uint8))
    with pytest.raises(ValueError, match="training images are"):
        Samples(tall, flat, classes=11)
    with pytest.raises(ValueError, match="labels must be below 10, and one is 10"):
        Samples(flat, flat, classes=10)
    assert Samples(flat, flat, classes=11).shape == (1, 8, 8)


def test_built_in_data_sets_satisfy_the_protocol() -> None:
    """Everything registered by this package satisfies the protocol that users implement."""
    assert all(isinstance(dataset, Dataset) for dataset in (*IDX_DATASETS, DIGITS))
    assert EMNIST_DIGITS.train_images.shape[0] == 240_000


def test_finding_files_imports_nothing_heavy(copy: Path) -> None:
    """Finding MNIST, even where its checksum decides, imports neither numpy nor torch."""
    program = (
        "import sys; from pathlib import Path; from training.data.builtin.catalog import MNIST, FASHION_MNIST;"
        f"data = Path({str(copy)!r}); assert MNIST.sources(data) and not FASHION_MNIST.sources(data);"
        "print([name for name in ('numpy', 'torch', 'torchvision', 'sklearn') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
