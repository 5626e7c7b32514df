"""The data sets that can be trained on, and what a user's own has to offer (`Dataset`).

Images come from verified files in the data directory; if there are none, torchvision may fetch them.
Importing this module is cheap: numpy, torchvision and scikit-learn are imported where they are needed.
"""

from __future__ import annotations

import hashlib
import io
import re
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from training.data.builtin import idx
from training.errors import DatasetError
from training.system.locks import use

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NETWORK_TIMEOUT_S: Final = 10.0
"""Longest wait for a connection or for the next bytes of a download."""

DIGITS_TEST_SAMPLES: Final = 297
"""How many of scikit-learn's 1,797 digits, the last ones, are the test set."""


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """Images uint8 [N, C, H, W], 0 is background and 255 is ink, and their labels uint8 [N].

    Raises:
        ValueError: the arrays are not that, or N is 0.
    """

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype.name != "uint8" or self.images.size == 0:
            raise ValueError(f"images must be uint8 [N, C, H, W] and not empty, not {_described(self.images)}")
        if self.labels.shape != self.images.shape[:1] or self.labels.dtype.name != "uint8":
            raise ValueError(f"labels must be uint8 [{len(self.images)}], one per image, not {_described(self.labels)}")


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """A whole data set; labels are below `classes`, and images of both splits have one shape.

    Raises:
        ValueError: they have not.
    """

    train: Split
    test: Split
    classes: int

    def __post_init__(self) -> None:
        if self.train.images.shape[1:] != self.test.images.shape[1:]:
            raise ValueError(
                f"training images are {self.train.images.shape[1:]}, test images {self.test.images.shape[1:]}"
            )
        highest = max(int(split.labels.max()) for split in (self.train, self.test))
        if highest >= self.classes:
            raise ValueError(f"labels must be below {self.classes}, and one is {highest}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width


@runtime_checkable
class Dataset(Protocol):
    """What is registered under the entry point group `preflight.datasets`: an object, not a class."""

    @property
    def classes(self) -> int:
        """Number of classes, at most 256."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        ...

    def sources(self, data_dir: Path) -> tuple[Path, ...]:
        """Return the files that `load` would read, none if they are not there; cheap, without torch."""
        ...

    def load(self, data_dir: Path, *, download: bool) -> Samples:
        """Read and verify the data set, fetching it into `data_dir` first if need be and allowed.

        Raises:
            DatasetError: it is missing, damaged or cannot be fetched.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IdxFile:
    """One file of an `IdxDataset`: how it is named and what it must hold."""

    name: str
    """Without `.gz`."""
    shape: tuple[int, ...]
    dtype: str = "u1"
    md5: str | None = None
    """Of the uncompressed file, where it is known."""
    gz_md5: str | None = None
    """Of the compressed file as published."""

    def within(self, folder: Path) -> Path | None:
        """Return where the file lies in `folder`, the compressed one first: its checksum is always known."""
        candidates = (folder / f"{self.name}.gz", folder / self.name)
        return next((path for path in candidates if _is_file(path)), None)

    def read(self, path: Path) -> npt.NDArray[np.generic]:
        """Return the verified values at `path`.

        Verified means: the MD5 of the uncompressed file or, where nobody knows it, of the compressed one. If
        the file is raw besides, only type and shape are checked, and that it is not known as another set's.

        Raises:
            DatasetError: naming the file.
        """
        content = idx.read(path)
        if (content.dtype, content.shape) != (self.dtype, self.shape):
            found = f"{content.dtype} {list(content.shape)}"
            raise idx.damaged(path, f"it holds {found} where {self.dtype} {list(self.shape)} belongs")
        if self.md5 is not None:
            _check_md5(path, content.md5, self.md5)
        elif self.gz_md5 is not None and path.suffix == ".gz":
            _check_md5(path, _file_md5(path), self.gz_md5)
        elif other := _publisher({content.md5}):
            raise idx.damaged(path, f"it is a file of {other}")
        return content.array()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdxDataset:
    """A data set of four IDX files, each raw or gzipped.

    They are looked for in `<data_dir>/<name>/`, in `<data_dir>/<torchvision's class>/raw/` and in `data_dir`,
    in this order; the first that has all four is taken. Several data sets use the same file names, so files
    directly in `data_dir` are passed over when their checksum is that of another data set.

    If no folder has all four, all four are downloaded (when allowed) into `<data_dir>/<name>/`, even if some
    are there: what is left of an interrupted copy is not worth a special case.
    """

    name: str
    torchvision: str
    """Name of torchvision's class, which knows the mirrors."""
    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile
    split: str | None = None
    """What torchvision's class calls `split`, if it has several."""
    transposed: bool = False
    """Whether rows and columns of the stored images are swapped."""
    classes: int = 10
    shape: tuple[int, int, int] = (1, 28, 28)

    @property
    def files(self) -> tuple[IdxFile, ...]:
        """The four files, the smallest last."""
        return self.train_images, self.test_images, self.train_labels, self.test_labels

    @property
    def staging(self) -> str:
        """What the directories of downloads begin with, in the data directory."""
        return f".{self.name}-"

    def sources(self, data_dir: Path) -> tuple[Path, ...]:
        """Return the paths of `files`, or none; see the class for where they are looked for."""
        for folder in self._named_folders(data_dir):
            if found := self._within(folder):
                return found
        found = self._within(data_dir)
        return () if found and _publisher(_digests(found[-1])) not in (None, self.name) else found

    def load(self, data_dir: Path, *, download: bool) -> Samples:
        """Read and verify the four files, fetching them first if need be and allowed.

        Raises:
            DatasetError: a file is missing, damaged or another's, or cannot be fetched.
        """
        paths = self.sources(data_dir) or self._fetch(data_dir, download)
        train_images, test_images, train_labels, test_labels = zip(self.files, paths, strict=True)
        return Samples(
            train=Split(self._images(*train_images), self._labels(*train_labels)),
            test=Split(self._images(*test_images), self._labels(*test_labels)),
            classes=self.classes,
        )

    def _named_folders(self, data_dir: Path) -> tuple[Path, Path]:
        return data_dir / self.name, data_dir / self.torchvision / "raw"

    def _within(self, folder: Path) -> tuple[Path, ...]:
        """Return the paths of all files in `folder`, or none unless it has all."""
        found = tuple(path for file in self.files if (path := file.within(folder)))
        return found if len(found) == len(self.files) else ()

    def _images(self, file: IdxFile, path: Path) -> npt.NDArray[np.uint8]:
        import numpy as np

        images = file.read(path).astype(np.uint8, copy=False).reshape(-1, *self.shape)
        return images.swapaxes(2, 3) if self.transposed else images

    def _labels(self, file: IdxFile, path: Path) -> npt.NDArray[np.uint8]:
        import numpy as np

        # Of a table of several columns the first is the class.
        labels = file.read(path).reshape(file.shape[0], -1)[:, 0].astype(np.int64)
        wrong = labels[(labels < 0) | (labels >= self.classes)]
        if wrong.size:
            raise idx.damaged(path, f"a label in it is {wrong[0]}, not 0 to {self.classes - 1}")
        return labels.astype(np.uint8)

    def _fetch(self, data_dir: Path, download: bool) -> tuple[Path, ...]:
        """Have torchvision fetch the files into `<data_dir>/<name>/` and return their paths."""
        absent = self._absent(data_dir)
        if not download:
            raise DatasetError(f"{absent}; put the files there or allow the download", field=self.name)
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            # Beside the target, so that files appear in it by a rename: whoever else reads or fetches at the
            # same time sees a whole file or none.
            with TemporaryDirectory(prefix=self.staging, dir=data_dir) as staging, closing(use(Path(staging))):
                self._download(Path(staging), absent)
                return self._move(Path(staging) / self.torchvision / "raw", data_dir / self.name, absent)
        except OSError as error:
            raise DatasetError(
                f"{absent} and {data_dir} cannot be written ({error.strerror}); "
                "make it writable or put the files there",
                field=self.name,
            ) from error

    def _absent(self, data_dir: Path) -> str:
        """Return the beginning of a sentence that says what is not where."""
        for folder in (*self._named_folders(data_dir), data_dir):
            missing = [file.name for file in self.files if not file.within(folder)]
            if 0 < len(missing) < len(self.files):
                return f"{self.name} lacks {missing[0]}[.gz] in {folder}"
        return f"{self.name} is not in {data_dir}"

    def _download(self, root: Path, absent: str) -> None:
        try:
            from torchvision import datasets
        except (ImportError, RuntimeError) as error:  # RuntimeError: built for another version of torch
            raise DatasetError(
                f"{absent} and cannot be downloaded without torchvision ({_reason(error)}); "
                "put the files there or install preflight-worker[train]",
                field=self.name,
            ) from error
        options = {} if self.split is None else {"split": self.split}
        try:
            with _quiet(), _network_timeout(NETWORK_TIMEOUT_S):
                for train in (True, False):
                    getattr(datasets, self.torchvision)(root, train=train, download=True, **options)
        except (OSError, RuntimeError, HTTPException) as error:
            raise DatasetError(
                f"{absent} and could not be downloaded ({_reason(error)}); put the files there or use --dataset digits",
                field=self.name,
            ) from error

    def _move(self, fetched: Path, folder: Path, absent: str) -> tuple[Path, ...]:
        found = self._within(fetched)
        if not found:
            raise DatasetError(
                f"{absent} and torchvision did not fetch all of it; put the files there", field=self.name
            )
        folder.mkdir(exist_ok=True)
        return tuple(path.replace(folder / path.name) for path in found)


@dataclass(frozen=True, slots=True)
class Digits:
    """Scikit-learn's bundled digits: 1,797 real 8x8 images of 17 grey levels, enlarged to 28x28; no network.

    Enlarged bilinearly with half-pixel centres: row (or column) i of the result is taken at
    (i + 1/2) * 8/28 - 1/2 of the original, clipped to its edge; levels 0..16 become 0..255.
    """

    classes: int = 10
    shape: tuple[int, int, int] = (1, 28, 28)

    def sources(self, data_dir: Path) -> tuple[Path, ...]:
        """Return no files: the images come with scikit-learn."""
        del data_dir
        return ()

    def load(self, data_dir: Path, *, download: bool) -> Samples:
        """Return the first 1,500 images as training set and the other 297 as test set.

        Raises:
            DatasetError: scikit-learn is not installed.
        """
        del data_dir, download
        import numpy as np

        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise DatasetError(
                "digits comes with scikit-learn, which is not installed; install preflight-worker[demo]",
                field="digits",
            ) from error
        pixels, targets = load_digits(return_X_y=True)
        small = np.asarray(pixels, dtype=np.float64).reshape(-1, 8, 8)
        labels = np.asarray(targets, dtype=np.uint8)
        images = np.rint(_enlarged(small, self.shape[1]) * (255 / 16)).astype(np.uint8)[:, np.newaxis]
        first = len(images) - DIGITS_TEST_SAMPLES
        return Samples(
            train=Split(images[:first], labels[:first]),
            test=Split(images[first:], labels[first:]),
            classes=self.classes,
        )


def _enlarged(images: npt.NDArray[np.float64], side: int) -> npt.NDArray[np.float64]:
    """Return square `images` [N, S, S] as [N, side, side], bilinearly; the formula is in `Digits`."""
    import numpy as np

    small = images.shape[1]
    at = (np.arange(side) + 0.5) * small / side - 0.5
    weights = np.stack([np.interp(at, np.arange(small), row) for row in np.eye(small)], axis=1)
    enlarged: npt.NDArray[np.float64] = weights @ images @ weights.T
    return enlarged


def _described(array: npt.NDArray[np.generic]) -> str:
    return f"{array.dtype.name} {list(array.shape)}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be searched
        return False


def _file_md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _check_md5(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise idx.damaged(path, f"its MD5 is {found}, not {expected}")


def _digests(path: Path) -> set[str]:
    """Return the MD5s of the file at `path` as it is and uncompressed; none if it cannot be read."""
    try:
        return {_file_md5(path), idx.read(path).md5}
    except (OSError, DatasetError):
        return set()


def _publisher(digests: set[str]) -> str | None:
    """Return the built-in data set that a file with one of these MD5s belongs to, if any."""
    known = ((dataset.name, file) for dataset in IDX_DATASETS for file in dataset.files)
    return next((name for name, file in known if digests & {file.md5, file.gz_md5}), None)


def _reason(error: Exception) -> str:
    """Return why torchvision failed, in one line: its own messages have one per mirror."""
    text = str(error).strip()
    if unreachable := re.search(r"<urlopen error (?:\[.*?\] )?(.+?)>", text):
        return f"no network: {unreachable[1]}"
    return re.sub(r"^\[Errno \d+\] ", "", text.splitlines()[-1]) if text else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop what is printed, such as progress bars: stdout is for results and stderr for the log."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        yield


@contextmanager
def _network_timeout(seconds: float) -> Iterator[None]:
    """Bound every wait of sockets that set no timeout of their own: torchvision's do not."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _like_mnist(
    name: str,
    torchvision: str,
    *,
    gz_md5s: tuple[str, str, str, str],
    md5s: tuple[str, str, str, str] | tuple[None, None, None, None] = (None, None, None, None),
) -> IdxDataset:
    """Return a data set with MNIST's file names and shapes; checksums: train and test images, then labels."""
    train_images, test_images, train_labels, test_labels = zip(md5s, gz_md5s, strict=True)
    return IdxDataset(
        name=name,
        torchvision=torchvision,
        train_images=_file("train-images-idx3-ubyte", (60_000, 28, 28), *train_images),
        test_images=_file("t10k-images-idx3-ubyte", (10_000, 28, 28), *test_images),
        train_labels=_file("train-labels-idx1-ubyte", (60_000,), *train_labels),
        test_labels=_file("t10k-labels-idx1-ubyte", (10_000,), *test_labels),
    )


def _file(name: str, shape: tuple[int, ...], md5: str | None, gz_md5: str | None) -> IdxFile:
    return IdxFile(name=name, shape=shape, md5=md5, gz_md5=gz_md5)


# The MD5s of compressed files are torchvision's. MNIST is often found recompressed, so the MD5s of its
# uncompressed files decide; nobody publishes those of the others.
MNIST: Final = _like_mnist(
    "mnist",
    "MNIST",
    md5s=(
        "6bbc9ace898e44ae57da46a324031adb", "2646ac647ad5339dbf082846283269ea",
        "a25bea736e30d166cdddb491f175f624", "27ae3e4e09519cfbb04c329615203637",
    ),
    gz_md5s=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873", "9fb629c4189551a2d022fa330f9573f3",
        "d53e105ee54ea40749a09fcbcd1e9432", "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)  # fmt: skip
FASHION_MNIST: Final = _like_mnist(
    "fashion-mnist",
    "FashionMNIST",
    gz_md5s=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "bef4ecab320f06d8554ea6380940ec79",
        "25c81989df183df01b3e8a0aad5dffbe", "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)  # fmt: skip
KMNIST: Final = _like_mnist(
    "kmnist",
    "KMNIST",
    gz_md5s=(
        "bdb82020997e1d708af4cf47b453dcf7", "5c965bf0a639b31b8f53240b1b52f4d7",
        "e144d726b3acfaa3e44228e80efcd344", "7320c461ea6c1c855c0b718fb2a4b134",
    ),
)  # fmt: skip
EMNIST_DIGITS: Final = IdxDataset(
    # Published as one zip of gzipped files, whose MD5 torchvision checks; the files by themselves have none.
    name="emnist",
    torchvision="EMNIST",
    train_images=IdxFile(name="emnist-digits-train-images-idx3-ubyte", shape=(240_000, 28, 28)),
    test_images=IdxFile(name="emnist-digits-test-images-idx3-ubyte", shape=(40_000, 28, 28)),
    train_labels=IdxFile(name="emnist-digits-train-labels-idx1-ubyte", shape=(240_000,)),
    test_labels=IdxFile(name="emnist-digits-test-labels-idx1-ubyte", shape=(40_000,)),
    split="digits",
    transposed=True,
)
QMNIST: Final = IdxDataset(
    # Labels are int32 [N, 8]: the class, then who wrote it and where it is in NIST's database.
    name="qmnist",
    torchvision="QMNIST",
    train_images=IdxFile(
        name="qmnist-train-images-idx3-ubyte",
        shape=(60_000, 28, 28),
        gz_md5="ed72d4157d28c017586c42bc6afe6370",
    ),
    test_images=IdxFile(
        name="qmnist-test-images-idx3-ubyte",
        shape=(60_000, 28, 28),
        gz_md5="1394631089c404de565df7b7aeaf9412",
    ),
    train_labels=IdxFile(
        name="qmnist-train-labels-idx2-int",
        shape=(60_000, 8),
        dtype=">i4",
        gz_md5="0058f8dd561b90ffdd0f734c6a30e5e4",
    ),
    test_labels=IdxFile(
        name="qmnist-test-labels-idx2-int",
        shape=(60_000, 8),
        dtype=">i4",
        gz_md5="5b5b05890a5e13444e108efe57b788aa",
    ),
)
DIGITS: Final = Digits()

IDX_DATASETS: Final = (MNIST, FASHION_MNIST, KMNIST, EMNIST_DIGITS, QMNIST)
