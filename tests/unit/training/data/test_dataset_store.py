"""Stores and their preparation: bit-equal, atomic, mapped, not copied, and made anew when they should be."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.files.mnist_files import link_mnist

from preflight.errors import DatasetError, InvalidConfig
from training.data import dataset_store
from training.data.dataset_info import Fingerprint, read_info
from training.data.dataset_store import open_dataset, write
from training.data.datasets import LabeledImages, Samples
from training.data.prepare import prepare, prepared


@pytest.fixture
def linked(mnist_dir: Path, tmp_path: Path) -> Path:
    return link_mnist(mnist_dir, tmp_path / "data" / "mnist").parent


@pytest.fixture(scope="session")
def mnist_cache(mnist_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    prepare("mnist", mnist_dir, cache)
    return cache


def random_samples(train: int, test: int, *, seed: int = 0) -> Samples:
    random = np.random.default_rng(seed)

    def split(count: int) -> LabeledImages:
        images = random.integers(0, 256, (count, 3, 4, 5), dtype=np.uint8).swapaxes(2, 3)
        return LabeledImages(images, random.integers(0, 7, count, dtype=np.uint8))

    return Samples(split(train), split(test), classes=7)


def run(program: str, *arguments: object) -> str:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_what_is_written_is_read_bit_for_bit(tmp_path: Path) -> None:
    """Tensors and description come back as written, from arrays that are not contiguous too."""
    samples = random_samples(5000, 7)
    (tmp_path / "source").write_bytes(b"abc")
    sources = (Fingerprint.of(tmp_path / "source"),)
    path = tmp_path / "deep" / "x.safetensors"
    written = write(path, "x", samples, sources)
    opened = open_dataset(path)
    assert opened.info == written == read_info(path)
    tensors = (opened.train_images, opened.train_labels, opened.test_images, opened.test_labels)
    arrays = (samples.train.images, samples.train.labels, samples.test.images, samples.test.labels)
    assert all(np.array_equal(tensor.numpy(), array) for tensor, array in zip(tensors, arrays, strict=True))
    assert (written.name, written.path, written.shape, written.classes) == ("x", path, (3, 5, 4), 7)
    assert (written.train_count, written.test_count, written.sources) == (5000, 7, sources)
    assert sources[0].size == 3
    assert [file.name for file in path.parent.iterdir()] == ["x.safetensors"]


def test_mean_and_deviation_are_those_of_the_training_pixels(tmp_path: Path) -> None:
    """Counting agrees with numpy's own mean and std, over several blocks."""
    samples = random_samples(2 * dataset_store.STATISTICS_IMAGES + 5, 3)
    info = write(tmp_path / "x", "x", samples, ())
    pixels = samples.train.images.astype(np.float64)
    assert info.mean == pytest.approx(pixels.mean(), rel=1e-12)
    assert info.std == pytest.approx(pixels.std(), rel=1e-12)


def test_real_mnist_has_its_well_known_mean_and_deviation(mnist_dir: Path, mnist_cache: Path) -> None:
    """Mean 0.1307 and deviation 0.3081 of MNIST, as everybody writes them, here on the scale 0..255."""
    info = prepared("mnist", mnist_dir, mnist_cache)
    assert info is not None
    assert (round(info.mean / 255, 4), round(info.std / 255, 4)) == (0.1307, 0.3081)
    assert (info.train_count, info.test_count, len(info.sources)) == (60_000, 10_000, 4)


def test_writing_to_a_tensor_changes_no_file(tmp_path: Path) -> None:
    """The mapping is private: a slip in one process reaches neither the file nor another process."""
    path = tmp_path / "x"
    write(path, "x", random_samples(10, 10), ())
    before = path.read_bytes()
    opened = open_dataset(path)
    opened.train_images.fill_(7)
    assert path.read_bytes() == before
    assert not bool((open_dataset(path).train_images == 7).all())


MEASURE = """
import re, sys, torch
from pathlib import Path
from training.data.dataset_store import open_dataset
def resident():
    status = Path("/proc/self/status").read_text()
    return [int(re.search(rf"{name}:\\s+(\\d+)", status)[1]) for name in ("RssAnon", "RssFile")]
torch.arange(1000).sum()  # what torch allocates at its first operation
before = resident()
images = open_dataset(Path(sys.argv[1])).train_images
total = images.flatten()[::512].sum()
after = resident()
print(after[0] - before[0], after[1] - before[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_images_are_mapped_and_not_copied(mnist_cache: Path) -> None:
    """Touching all 47 MB adds them to file-backed memory, which processes share, and to no other."""
    anonymous, mapped = map(int, run(MEASURE, mnist_cache / "datasets" / "mnist.safetensors").split())
    assert anonymous < 6 * 1024
    assert mapped > 40 * 1024


def test_reading_a_header_imports_nothing_heavy(mnist_dir: Path, mnist_cache: Path) -> None:
    """`read_info` and `prepared` leave numpy, torch and safetensors unimported."""
    program = """
import sys
from pathlib import Path
from training.data.prepare import prepared
from training.data.dataset_info import read_info
info = prepared("mnist", Path(sys.argv[1]), Path(sys.argv[2]))
assert info is not None and read_info(info.path) == info
print([name for name in ("numpy", "torch", "torchvision", "safetensors", "sklearn") if name in sys.modules])
"""
    assert run(program, mnist_dir, mnist_cache) == "[]\n"


def with_header(data: bytes, header: object) -> bytes:
    length = int.from_bytes(data[:8], "little")
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data[8 + length :]


def damaged_stores(data: bytes) -> dict[str, bytes]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    described = json.loads(header["__metadata__"]["preflight"])

    def described_as(**changes: object) -> bytes:
        metadata = {"preflight": json.dumps(described | changes)}
        return with_header(data, header | {"__metadata__": metadata})

    moved = header["train_labels"] | {"data_offsets": [0, 10]}
    return {
        "empty": b"",
        "seven bytes": data[:7],
        "header cut": data[: 8 + length // 2],
        "last byte missing": data[:-1],
        "one byte more": data + b"\0",
        "absurd header length": b"\xff" * 8 + data[8:],
        "header not json": data[:8] + b"x" * length + data[8 + length :],
        "header a list": with_header(data, []),
        "foreign safetensors": with_header(data, {"__metadata__": {}, "weight": header["train_images"]}),
        "overlapping tensors": with_header(data, header | {"train_labels": moved}),
        "another format": described_as(format=2),
        "another count": described_as(info=described["info"] | {"train_count": 9}),
        "mean not a number": described_as(info=described["info"] | {"mean": "33"}),
    }


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    """However a store is damaged, reading and opening it say so in one sentence that names the file."""
    path = tmp_path / "x.safetensors"
    write(path, "x", random_samples(10, 10), ())
    for how, data in damaged_stores(path.read_bytes()).items():
        path.write_bytes(data)
        for look in (read_info, open_dataset):
            with pytest.raises(DatasetError) as caught:
                look(path)
            assert caught.value.field == str(path), how
            assert f"{path} is damaged" in caught.value.message, how
            assert "\n" not in caught.value.message


def test_a_missing_or_unwritable_store_is_named(tmp_path: Path) -> None:
    """Missing files and directories in which nothing can be written are errors with a name."""
    with pytest.raises(DatasetError, match="cannot be read"):
        read_info(tmp_path / "missing")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DatasetError, match="cannot be written") as caught:
        write(tmp_path / "file" / "x", "x", random_samples(1, 1), ())
    assert caught.value.field == str(tmp_path / "file" / "x")


def test_a_failed_write_leaves_the_old_store_and_nothing_else(tmp_path: Path) -> None:
    """What cannot take the place of the target is removed again."""
    path = tmp_path / "x"
    path.mkdir()
    (path / "occupied").touch()
    with pytest.raises(DatasetError, match="cannot be written"):
        write(path, "x", random_samples(5, 5), ())
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_concurrent_writers_never_show_half_a_store(tmp_path: Path) -> None:
    """While two threads write different samples to one path, every look finds one whole store."""
    path = tmp_path / "x"
    several = {400: random_samples(400, 10, seed=1), 900: random_samples(900, 10, seed=2)}
    write(path, "x", several[400], ())

    def write_often(samples: Samples) -> None:
        for _ in range(15):
            write(path, "x", samples, ())

    writers = [threading.Thread(target=write_often, args=(samples,)) for samples in several.values()]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        opened = open_dataset(path)
        expected = several[opened.train_images.shape[0]]
        assert np.array_equal(opened.train_images.numpy(), expected.train.images)
    for writer in writers:
        writer.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_data_set_is_prepared_once(linked: Path, tmp_path: Path) -> None:
    """Nothing, made, found; a file that changed is verified again, and one that is gone is not missed."""
    cache = tmp_path / "cache"
    assert prepared("mnist", linked, cache) is None
    made = prepare("mnist", linked, cache, download=False)
    assert made.path == cache / "datasets" / "mnist.safetensors"
    assert prepared("mnist", linked, cache) == made

    labels = linked / "mnist" / "t10k-labels-idx1-ubyte.gz"
    original = labels.read_bytes()
    labels.unlink()
    assert prepared("mnist", linked, cache) == made

    labels.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    assert prepared("mnist", linked, cache) is None
    with pytest.raises(DatasetError) as caught:
        prepare("mnist", linked, cache, download=False)
    assert caught.value.field == str(labels)


def test_a_damaged_store_is_prepared_again(tmp_path: Path) -> None:
    """A store that is not whole counts as none, and preparing replaces it."""
    made = prepare("digits", tmp_path, tmp_path)
    data = made.path.read_bytes()
    made.path.write_bytes(data[:-1])
    assert prepared("digits", tmp_path, tmp_path) is None
    assert prepare("digits", tmp_path, tmp_path) == prepared("digits", tmp_path, tmp_path) == made
    assert made.path.read_bytes() == data


USERS_MODULE = """
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from training.data.datasets import Samples, LabeledImages

def split(labels):
    return LabeledImages(np.zeros((len(labels), 1, 8, 8), np.uint8), np.array(labels, np.uint8))

@dataclass(frozen=True)
class Mine:
    classes: int = 2
    shape: tuple[int, int, int] = (1, 8, 8)
    highest: int = 1

    def sources(self, data_dir: Path) -> tuple[Path, ...]:
        return tuple(data_dir.glob("*.mine"))

    def load(self, data_dir: Path, *, download: bool) -> Samples:
        return Samples(split([0, self.highest]), split([1]), classes=2)

good, wrong_shape, wrong_labels, number = Mine(), Mine(shape=(1, 28, 28)), Mine(highest=2), 3
one_class = Mine(highest=0)
"""


@pytest.fixture
def users_package(install_package: Callable[..., None]) -> None:
    """Install a package that registers data sets of its own, good and bad ones."""
    objects = {"good", "wrong_shape", "wrong_labels", "one_class", "number", "Mine"}
    install_package("preflight.datasets", {name: f"mine_sets:{name}" for name in objects}, "mine_sets", USERS_MODULE)


@pytest.mark.usefixtures("users_package")
def test_a_users_own_data_set_is_prepared(tmp_path: Path) -> None:
    """An installed package adds a data set without touching this one."""
    (tmp_path / "a.mine").write_text("a")
    made = prepare("good", tmp_path, tmp_path)
    assert (made.name, made.shape, made.classes, made.train_count) == ("good", (1, 8, 8), 2, 2)
    assert [Path(source.path).name for source in made.sources] == ["a.mine"]
    assert prepared("good", tmp_path, tmp_path) == made
    (tmp_path / "b.mine").write_text("b")
    assert prepared("good", tmp_path, tmp_path) is None


@pytest.mark.usefixtures("users_package")
@pytest.mark.parametrize("name", ["number", "Mine"])
def test_what_is_no_data_set_is_an_invalid_config(tmp_path: Path, name: str) -> None:
    """A registered object that is no data set, or a class instead of an object, is refused by name."""
    for look in (prepare, prepared):
        with pytest.raises(InvalidConfig, match=f"dataset '{name}' is registered as") as caught:
            look(name, tmp_path, tmp_path)
        assert caught.value.field == "dataset"


@pytest.mark.usefixtures("users_package")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("wrong_shape", "says it has 2 classes"),
        ("wrong_labels", "labels must be below 2"),
        ("one_class", "has one class only: all its 2 training labels are 0; give it samples of two classes or more"),
    ],
)
def test_a_users_data_set_is_held_to_its_word(tmp_path: Path, name: str, says: str) -> None:
    """Samples that are not what the data set says, or that are no valid samples, are refused by name."""
    with pytest.raises(DatasetError, match=says) as caught:
        prepare(name, tmp_path, tmp_path)
    assert caught.value.field == name


def test_an_unknown_name_is_an_invalid_config(tmp_path: Path) -> None:
    """A data set that nobody registered is refused with the nearest name."""
    with pytest.raises(InvalidConfig, match="did you mean 'mnist'"):
        prepare("mnits", tmp_path, tmp_path)
