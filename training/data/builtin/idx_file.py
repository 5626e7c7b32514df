"""One file of an IDX data set: its name, shape and checksums."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from training.data.builtin import idx
from training.data.builtin.checksums import file_md5, published_by

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


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
        """Return the values at `path`, verified by the MD5 of the uncompressed file or else of the compressed one.

        Of a raw file without a known MD5, type and shape are checked, and that it is not another data set's.

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
            _check_md5(path, file_md5(path), self.gz_md5)
        elif other := published_by({content.md5}):
            raise idx.damaged(path, f"it is a file of {other}")
        return content.array()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that may not be searched
        return False


def _check_md5(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise idx.damaged(path, f"its MD5 is {found}, not {expected}")
