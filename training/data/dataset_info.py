"""Description of a prepared data set, read from the header of its file alone; torch-free."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, BinaryIO, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT
from preflight.errors import DatasetError

FORMAT: Final = 1
"""Number of the format, raised when the file's content changes; files of another format are prepared again."""

MAX_HEADER_BYTES: Final = 1 << 20
"""A header is about a kilobyte; a longer one is not read."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Fingerprint:
    """State of a source file; a file with the same state counts as unchanged."""

    path: Path
    size: int
    """Size in bytes."""
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Fingerprint:
        """Return the fingerprint of the file at `path`.

        Raises:
            OSError: it is not there or may not be looked at.
        """
        stat = path.stat()
        return cls(path=path.resolve(), size=stat.st_size, mtime_ns=stat.st_mtime_ns)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class DatasetInfo:
    """Content of a prepared data set."""

    name: str
    path: Path
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    classes: int
    train_count: int
    test_count: int
    mean: float
    """Mean of all training pixels, on the scale 0..255."""
    std: float
    """Population standard deviation of all training pixels, on the scale 0..255."""
    sources: tuple[Fingerprint, ...]
    """The files it was made from; none for imported data."""
    class_names: tuple[str, ...] = ()
    """Class names of imported data; empty: the numbers of the classes."""
    sha256: str | None = None
    """SHA-256 of the content of an imported version; the catalog has it."""
    inverted: bool | None = None
    """Whether pictures of imported data were inverted, so that 0 is background; None: not imported."""
    validation_count: int | None = None
    """Last training samples that validate by default; None: as `training.data.split` says."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class _Description:
    """Content of the file's metadata."""

    format: Literal[1]
    package: str
    """Version of preflight-worker that wrote the file; for people, decides nothing."""
    info: DatasetInfo


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class _Metadata:
    preflight: str
    """A `_Description` as JSON: safetensors allows strings only."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class _Tensor:
    dtype: Literal["U8", "I16"]
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * (1 if self.dtype == "U8" else 2)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class _Header:
    """The JSON header of the file."""

    metadata: Annotated[_Metadata, Field(alias="__metadata__")]
    train_images: _Tensor
    train_labels: _Tensor
    test_images: _Tensor
    test_labels: _Tensor

    @property
    def tensors(self) -> tuple[_Tensor, ...]:
        return self.train_images, self.train_labels, self.test_images, self.test_labels


def to_metadata(info: DatasetInfo) -> dict[str, str]:
    """Return the metadata of the file that holds a data set."""
    description = _Description(format=FORMAT, package=version("preflight-worker"), info=info)
    return {"preflight": TypeAdapter(_Description).dump_json(description).decode()}


def read_info(path: Path) -> DatasetInfo:
    """Return the description of the store at `path`, from its header alone.

    Raises:
        DatasetError: there is no such file, it is of another format, or it is not whole.
    """
    with opened(path) as file:
        return info_of(file, path)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open the store at `path`; raises `DatasetError`."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    with file:
        yield file


def info_of(file: BinaryIO, path: Path) -> DatasetInfo:
    """Return the description of an opened store; raises as `read_info`, and names `path`."""
    try:
        length = int.from_bytes(file.read(8), "little")
        encoded = file.read(min(length, MAX_HEADER_BYTES))
        size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        header = TypeAdapter(_Header).validate_json(encoded)
        info = TypeAdapter(_Description).validate_json(header.metadata.preflight).info
    except ValidationError as error:
        raise damaged(path, "its header is not that of a store of this version") from error
    if size != 8 + length + _body_bytes(header):
        raise damaged(path, f"its {size:,} bytes are not what its header describes")
    images = header.train_images, header.test_images
    if [tensor.shape for tensor in header.tensors] != _shapes(info) or any(each.dtype != "U8" for each in images):
        raise damaged(path, "its tensors are not shaped as its description says")
    return dataclasses.replace(info, path=path)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Place:
    """Place of a tensor in a store."""

    offset: int
    """Offset of its first byte in the file."""
    count: int
    """Number of samples."""
    bytes: int
    """Bytes of one sample."""


def tensor_places(file: BinaryIO, path: Path) -> dict[str, Place]:
    """Return the places of `train_images`, `train_labels`, `test_images` and `test_labels`; raises `DatasetError`."""
    try:
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        header = TypeAdapter(_Header).validate_json(file.read(min(length, MAX_HEADER_BYTES)))
    except (OSError, ValidationError) as error:
        raise damaged(path, f"its header cannot be read ({error})") from error
    named = {
        "train_images": header.train_images, "train_labels": header.train_labels,
        "test_images": header.test_images, "test_labels": header.test_labels,
    }  # fmt: skip
    return {
        name: Place(offset=8 + length + each.data_offsets[0], count=each.shape[0],
                    bytes=each.bytes // max(1, each.shape[0]))
        for name, each in named.items()
    }  # fmt: skip


def _unreadable(path: Path, error: OSError) -> DatasetError:
    return DatasetError(
        f"the prepared data set {path} cannot be read ({error.strerror}); prepare it again", field=str(path)
    )


def damaged(path: Path, what: str) -> DatasetError:
    """Return the error for a prepared data set that cannot be used because of `what`."""
    return DatasetError(
        f"the prepared data set {path} is damaged: {what}; delete it so that it is prepared again", field=str(path)
    )


def _body_bytes(header: _Header) -> int:
    """Return the length of the tensors, or -1 unless they lie end to end."""
    end = 0
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.data_offsets):
        if tensor.data_offsets != (end, end + tensor.bytes):
            return -1
        end = tensor.data_offsets[1]
    return end


def _shapes(info: DatasetInfo) -> list[tuple[int, ...]]:
    train, test = info.train_count, info.test_count
    return [(train, *info.shape), (train,), (test, *info.shape), (test,)]
