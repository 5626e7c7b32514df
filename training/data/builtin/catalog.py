"""MNIST and its relatives: names, shapes and checksums of their files."""

from typing import Final

from training.data.builtin.checksums import MD5S, Md5
from training.data.builtin.idx_dataset import IdxDataset
from training.data.builtin.idx_file import IdxFile

MNIST_FILES: Final = (
    "train-images-idx3-ubyte", "t10k-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip
EMNIST_FILES: Final = (
    "emnist-digits-train-images-idx3-ubyte", "emnist-digits-test-images-idx3-ubyte",
    "emnist-digits-train-labels-idx1-ubyte", "emnist-digits-test-labels-idx1-ubyte",
)  # fmt: skip
QMNIST_FILES: Final = (
    "qmnist-train-images-idx3-ubyte", "qmnist-test-images-idx3-ubyte",
    "qmnist-train-labels-idx2-int", "qmnist-test-labels-idx2-int",
)  # fmt: skip


def _dataset(
    name: str, torchvision: str, files: tuple[str, str, str, str] = MNIST_FILES,
    counts: tuple[int, int] = (60_000, 10_000), *, split: str | None = None, transposed: bool = False,
) -> IdxDataset:  # fmt: skip
    """Return a data set of (train, test) `counts` of 28x28 images; files: train and test images, then labels."""
    images = [(count, 28, 28) for count in counts]
    # Labels of QMNIST are int32 [N, 8]: the class, then who wrote it and where it is in NIST's database.
    labels = [(count, 8) if files[2].endswith("int") else (count,) for count in counts]
    train_images, test_images, train_labels, test_labels = map(_file, files, [*images, *labels], MD5S[name])
    return IdxDataset(
        name=name, torchvision=torchvision, split=split, transposed=transposed,
        train_images=train_images, test_images=test_images, train_labels=train_labels, test_labels=test_labels,
    )  # fmt: skip


def _file(name: str, shape: tuple[int, ...], md5: Md5) -> IdxFile:
    return IdxFile(name=name, shape=shape, dtype=">i4" if name.endswith("int") else "u1", md5=md5.raw, gz_md5=md5.gz)


MNIST: Final = _dataset("mnist", "MNIST")
FASHION_MNIST: Final = _dataset("fashion-mnist", "FashionMNIST")
KMNIST: Final = _dataset("kmnist", "KMNIST")
EMNIST_DIGITS: Final = _dataset("emnist", "EMNIST", EMNIST_FILES, (240_000, 40_000), split="digits", transposed=True)
QMNIST: Final = _dataset("qmnist", "QMNIST", QMNIST_FILES, (60_000, 60_000))

IDX_DATASETS: Final = (MNIST, FASHION_MNIST, KMNIST, EMNIST_DIGITS, QMNIST)
