"""Data sets of four IDX files, as MNIST: found in the data directory, verified, or downloaded."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from preflight.errors import DatasetError
from preflight.files.locks import use
from training.data.builtin import idx, npz
from training.data.builtin.checksums import published_by
from training.data.builtin.download import download
from training.data.builtin.idx_file import IdxFile, file_digests, is_idx
from training.data.builtin.names import names_dataset
from training.data.builtin.search import Folder, Found, look
from training.data.builtin.unused import describe_unused
from training.data.datasets import LabeledImages, Samples, UnreadableFolder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class IdxDataset:
    """A data set of four IDX files, each raw or gzipped.

    The first of `<data_dir>/<name>/`, `<data_dir>/<torchvision's class>/raw/` and `data_dir` that holds all four is
    read; files directly in `data_dir` are skipped when their checksum is that of another data set. Then `data_dir` is
    searched for other names and folders, and for Keras' archive; there the checksum decides, or, where none is known,
    the name of the folder. Else all four are downloaded (when allowed) into `<data_dir>/<name>/`.
    """

    name: str
    torchvision: str
    """Name of torchvision's class, which knows the mirrors."""
    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile
    split: str | None = None
    """Value of `split` for torchvision's class, if it has several."""
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
        """Beginning of the names of download directories in the data directory."""
        return f".{self.name}-"

    def sources(self, data_dir: Path) -> tuple[Path, ...]:
        """Return the paths of `files`, or none; see the class for where they are looked for.

        Raises:
            UnreadableFolder: there are none, but a folder that may have them cannot be read.
        """
        named: tuple[Path, ...] = ()
        for folder in (*self._named_folders(data_dir), data_dir):
            found = self._within(folder)
            whose = published_by(file_digests(found[-1])) if found and folder == data_dir else self.name
            if not found or whose not in (None, self.name):
                continue
            if all(map(is_idx, found)) and (whose is not None or self.test_labels.md5 is None):
                return found
            named = named or found
        seen = look(data_dir)
        found = self._search(seen, data_dir) or named
        if not found:
            self._require_readable(seen, data_dir)
        return found

    def explain_absence(self, data_dir: Path) -> str | None:
        """Return a sentence about what is in `data_dir` instead of the data set; None: it is there, or nothing is.

        Raises:
            UnreadableFolder: it may be there.
        """
        found = self.sources(data_dir)
        for path in found:
            with suppress(OSError):
                if path.suffix.lower() != npz.SUFFIX and (what := idx.peek(path)):
                    return idx.damaged(path, f"it {what}").message
        if found:
            return None
        sentence = self._absent(data_dir)
        return None if sentence == self._not_in(data_dir) else sentence

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

    def _search(self, seen: Found, data_dir: Path) -> tuple[Path, ...]:
        """Return the paths of all files among those that were seen, or none; an archive counts as each of them."""
        for folder in seen.folders:
            paths = tuple(path for file in self.files if (path := self._choose(folder, file)))
            if len(paths) == len(self.files) and self._is_ours(paths[-1], data_dir):
                return paths
        for path in seen.others:
            if path.suffix.lower() == npz.SUFFIX and self.test_labels.md5 is not None and npz.is_archive(path):
                with suppress(DatasetError):
                    if npz.read(path, self.test_labels.role).md5 == self.test_labels.md5:
                        return (path,) * len(self.files)
        return ()

    def _choose(self, folder: Folder, file: IdxFile) -> Path | None:
        """Return the first path of a folder that by its name is `file`, and begins like an IDX file."""
        own = file.role
        for role, paths in folder.files.items():
            named = role.prefix == own.prefix or (own.prefix == "" and names_dataset(role.prefix, self.name))
            if named and role[1:] == own[1:]:
                for path in paths:
                    if is_idx(path):
                        return path
        return None

    def _is_ours(self, labels: Path, data_dir: Path) -> bool:
        """Whether a file of test labels is of this data set: by its checksum, or else by its name and folders."""
        whose = published_by(file_digests(labels))
        if whose is not None or self.test_labels.md5 is not None:
            return whose == self.name
        return self.test_labels.role.prefix != "" or names_dataset(
            str(data_dir.name / labels.relative_to(data_dir)), self.name
        )

    def _require_readable(self, seen: Found, data_dir: Path) -> None:
        for path, why in seen.unreadable.items():
            if path == data_dir or names_dataset(str(path.relative_to(data_dir)), self.name):
                raise UnreadableFolder(
                    f"{path} cannot be read by user {os.geteuid()} ({why}); make it readable (with SELinux, mount it "
                    "with :z)",
                    field=self.name,
                )

    def _images(self, file: IdxFile, path: Path) -> npt.NDArray[np.uint8]:
        import numpy as np

        images = file.read(path).astype(np.uint8, copy=False).reshape(-1, *self.shape)
        return images.swapaxes(2, 3) if self.transposed else images

    def _labels(self, file: IdxFile, path: Path) -> npt.NDArray[np.uint8]:
        import numpy as np

        # In a table of several columns, the first is the class.
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
            # Next to the target, so that files appear in it by a rename: other processes see a whole file or none.
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
        """Return the beginning of a sentence that says which files are missing where."""
        for folder in (*self._named_folders(data_dir), data_dir):
            missing = [file.name for file in self.files if not file.within(folder)]
            if 0 < len(missing) < len(self.files):
                return f"{self.name} lacks {missing[0]}[.gz] in {folder}"
        unused = describe_unused(look(data_dir), data_dir, self.name)
        return f"{self._not_in(data_dir)} ({unused})" if unused else self._not_in(data_dir)

    def _not_in(self, data_dir: Path) -> str:
        return f"{self.name} is not in {data_dir}"

    def _move(self, fetched: Path, folder: Path, absent: str) -> tuple[Path, ...]:
        found = self._within(fetched)
        if not found:
            raise DatasetError(
                f"{absent} and torchvision did not fetch all of it; put the files there", field=self.name
            )
        folder.mkdir(exist_ok=True)
        return tuple(path.replace(folder / path.name) for path in found)
