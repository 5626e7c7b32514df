"""One file of an IDX data set: its name, shape and checksums."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from preflight.errors import DatasetError
from training.data.builtin import idx, npz
from training.data.builtin.checksums import file_md5, published_by
from training.data.builtin.names import Role, role_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class IdxFile:
    """One file of an `IdxDataset`: its name and the content that it must have."""

    name: str
    """Name of the file without `.gz`."""
    shape: tuple[int, ...]
    dtype: str = "u1"
    md5: str | None = None
    """MD5 of the uncompressed file, where it is known."""
    gz_md5: str | None = None
    """MD5 of the compressed file as published."""

    @property
    def role(self) -> Role:
        """Role of the file, by its name."""
        found = role_of(self.name)
        if found is None:
            raise ValueError(f"{self.name} is no name of a file of MNIST or a relative")
        return found

    def within(self, folder: Path) -> Path | None:
        """Return the path of the file in `folder` under its own name, the compressed one first.

        Of two, the one that begins like an IDX file is taken.
        """
        candidates = [path for path in (folder / f"{self.name}.gz", folder / self.name) if _is_file(path)]
        return next((path for path in candidates if is_idx(path)), candidates[0] if candidates else None)

    def read(self, path: Path) -> npt.NDArray[np.generic]:
        """Return the values at `path`, verified by the MD5 of the uncompressed file or else of the compressed one.

        For a raw file without a known MD5, type and shape are checked, and that it is not another data set's. `path`
        may be Keras' archive of all four files.

        Raises:
            DatasetError: the file cannot be used; the message names it.
        """
        is_archive = path.suffix.lower() == npz.SUFFIX
        content = npz.read(path, self.role) if is_archive else idx.read(path)
        if (content.dtype, content.shape) != (self.dtype, self.shape):
            found = f"{content.dtype} {list(content.shape)}"
            raise idx.damaged(path, f"it holds {found} where {self.dtype} {list(self.shape)} belongs")
        if self.md5 is not None:
            _check_md5(path, content.md5, self.md5)
        elif self.gz_md5 is not None and idx.is_gzip(path):
            _check_md5(path, file_md5(path), self.gz_md5)
        elif other := published_by({content.md5}):
            raise idx.damaged(path, f"it is a file of {other}")
        return content.array()


def is_idx(path: Path) -> bool:
    """Whether a file can be read and begins like an IDX file, raw or gzipped."""
    try:
        return idx.peek(path) is None
    except OSError:
        return False


def file_digests(path: Path) -> set[str]:
    """Return the MD5s of the file at `path` as it is and uncompressed; none if it cannot be read."""
    try:
        return {file_md5(path), idx.read(path).md5}
    except (OSError, DatasetError):
        return set()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be searched
        return False


def _check_md5(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise idx.damaged(path, f"its MD5 is {found}, not {expected}")
