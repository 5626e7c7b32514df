"""Data sets of four IDX files, as MNIST: found in the data directory, verified, or downloaded."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from training.data.builtin import idx
from training.data.builtin.checksums import file_md5, published_by
from training.data.builtin.download import download
from training.data.builtin.idx_file import IdxFile
from training.data.datasets import LabeledImages, Samples
from training.errors import DatasetError
from training.system.locks import use

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class IdxDataset:
    """A data set of four IDX files, each raw or gzipped.

    The first of `<data_dir>/<name>/`, `<data_dir>/<torchvision's class>/raw/` and `data_dir` that holds all four is
    read; files directly in `data_dir` are skipped when their checksum is that of another data set. Else all four are
    downloaded (when allowed) into `<data_dir>/<name>/`.
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
        return () if found and published_by(_digests(found[-1])) not in (None, self.name) else found

    def load(self, data_dir: Path, *, download: bool) -> Samples:
        """Read and verify the four files, fetching them first if need be and allowed.

        Raises:
            DatasetError: a file is missing, damaged or another's, or cannot be fetched.
        """
        paths = self.sources(data_dir)
        if not (paths or download):
            message = f"{self._absent(data_dir)}; put the files there or allow the download"
            raise DatasetError(message, field=self.name)
        paths = paths or self._fetch(data_dir)
        train_images, test_images, train_labels, test_labels = zip(self.files, paths, strict=True)
        return Samples(
            train=LabeledImages(self._images(*train_images), self._labels(*train_labels)),
            test=LabeledImages(self._images(*test_images), self._labels(*test_labels)),
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

    def _fetch(self, data_dir: Path) -> tuple[Path, ...]:
        """Have torchvision fetch the files into `<data_dir>/<name>/` and return their paths."""
        absent = self._absent(data_dir)
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            # Beside the target, so that files appear in it by a rename: other processes see a whole file or none.
            with TemporaryDirectory(prefix=self.staging, dir=data_dir) as staging, closing(use(Path(staging))):
                download(self.name, self.torchvision, self.split, Path(staging), absent)
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

    def _move(self, fetched: Path, folder: Path, absent: str) -> tuple[Path, ...]:
        found = self._within(fetched)
        if not found:
            raise DatasetError(
                f"{absent} and torchvision did not fetch all of it; put the files there", field=self.name
            )
        folder.mkdir(exist_ok=True)
        return tuple(path.replace(folder / path.name) for path in found)


def _digests(path: Path) -> set[str]:
    """Return the MD5s of the file at `path` as it is and uncompressed; none if it cannot be read."""
    try:
        return {file_md5(path), idx.read(path).md5}
    except (OSError, DatasetError):
        return set()
