"""A prepared data set: one safetensors file of uint8 tensors that training processes map and share.

Importing this module, and reading what a store holds (`read_info`), needs neither torch nor numpy nor
safetensors: the supervisor does both and never imports them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from training.config.spec import STRICT
from training.errors import DatasetError
from training.system.atomic_files import staged
from training.system.digests import Digests

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from training.data.datasets import Samples

FORMAT: Final = 1
"""Raised when what a store holds changes its meaning; stores of another format are made anew."""

MAX_HEADER_BYTES: Final = 1 << 20
"""A header is about a kilobyte; what claims to be longer than this is not one."""

STATISTICS_IMAGES: Final = 4096
"""Images counted at a time: np.bincount makes an int64 copy of what it counts, eight times its size."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Fingerprint:
    """What a file looked like; a file that looks the same is taken to be the same."""

    path: Path
    size: int
    """Bytes."""
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
class StoreInfo:
    """What a store holds."""

    name: str
    path: Path
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    classes: int
    train_count: int
    test_count: int
    mean: float
    """Of all training pixels, on the scale 0..255."""
    std: float
    """Population standard deviation of all training pixels, on the scale 0..255."""
    sources: tuple[Fingerprint, ...]
    """The files it was made from."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Store:
    """An open store: uint8 tensors on the CPU, views of the mapped file.

    The mapping is copy-on-write: processes share its pages, and writing to a tensor changes neither the file
    nor what others see.
    """

    info: StoreInfo
    train_images: torch.Tensor
    """[N, C, H, W], 0 is background and 255 is ink."""
    train_labels: torch.Tensor
    """[N]"""
    test_images: torch.Tensor
    """[M, C, H, W]"""
    test_labels: torch.Tensor
    """[M]"""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class _Description:
    """What the metadata of the file say."""

    format: Literal[1]
    package: str
    """Version of preflight-worker that wrote it; for people, decides nothing."""
    info: StoreInfo


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class _Metadata:
    preflight: str
    """A `_Description` as JSON: safetensors allows strings only."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class _Tensor:
    dtype: Literal["U8"]
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


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


def write(path: Path, name: str, samples: Samples, sources: tuple[Fingerprint, ...]) -> StoreInfo:
    """Write `samples` as the store at `path`, whole or not at all, and return what it holds.

    Raises:
        DatasetError: the file cannot be written.
    """
    mean, std = _statistics(samples.train.images)
    info = StoreInfo(
        name=name,
        path=path,
        shape=samples.shape,
        classes=samples.classes,
        train_count=len(samples.train.labels),
        test_count=len(samples.test.labels),
        mean=mean,
        std=std,
        sources=sources,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_atomically(path, samples, info)
    except OSError as error:
        raise DatasetError(
            f"the prepared data set {path} cannot be written ({error.strerror}); "
            "make its directory writable and see that the disk is not full",
            field=str(path),
        ) from error
    return info


def read_info(path: Path) -> StoreInfo:
    """Return what the store at `path` holds, from its header alone.

    Raises:
        DatasetError: there is no such file, it is of another format, or it is not whole.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            encoded = file.read(min(length, MAX_HEADER_BYTES))
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DatasetError(
            f"the prepared data set {path} cannot be read ({error.strerror}); prepare it again",
            field=str(path),
        ) from error
    try:
        header = TypeAdapter(_Header).validate_json(encoded)
        info = TypeAdapter(_Description).validate_json(header.metadata.preflight).info
    except ValidationError as error:
        raise _damaged(path, "its header is not that of a store of this version") from error
    if size != 8 + length + _body_bytes(header):
        raise _damaged(path, f"its {size:,} bytes are not what its header describes")
    if [tensor.shape for tensor in header.tensors] != _shapes(info):
        raise _damaged(path, "its tensors are not shaped as its description says")
    return dataclasses.replace(info, path=path)


def open_store(path: Path) -> Store:
    """Map the store at `path`; only what is touched is read, and no image is copied.

    Raises:
        DatasetError: as `read_info`.
    """
    from safetensors import SafetensorError, safe_open

    info = read_info(path)
    try:
        with safe_open(path, framework="pt") as file:
            return Store(
                info=info,
                train_images=file.get_tensor("train_images"),
                train_labels=file.get_tensor("train_labels"),
                test_images=file.get_tensor("test_images"),
                test_labels=file.get_tensor("test_labels"),
            )
    except (OSError, SafetensorError) as error:
        raise _damaged(path, f"safetensors says {error}") from error


def read_test_images(path: Path, samples: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return the test images [n, C, H, W] with these numbers, n >= 1, and read no other; without torch.

    Raises:
        DatasetError: the store cannot be read.
    """
    import numpy as np
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            images = file.get_slice("test_images")
            return np.concatenate([images[sample : sample + 1] for sample in samples])
    except (OSError, SafetensorError) as error:
        raise _damaged(path, f"safetensors says {error}") from error


def checksum(info: StoreInfo, digests: Digests) -> str:
    """Return the sha256, in hex, of the tensors in the store: of the data alone, wherever and whenever it was made.

    It is taken from `digests` where the store was hashed before.

    Raises:
        DatasetError: the store cannot be read.
    """
    try:
        with info.path.open("rb") as file:
            file.seek(8 + int.from_bytes(file.read(8), "little"))
            return digests.sha256(file)
    except OSError as error:
        raise DatasetError(
            f"the prepared data set {info.path} cannot be read ({error.strerror}); prepare it again",
            field=str(info.path),
        ) from error


def _damaged(path: Path, what: str) -> DatasetError:
    return DatasetError(
        f"the prepared data set {path} is damaged: {what}; delete it so that it is made anew", field=str(path)
    )


def _body_bytes(header: _Header) -> int:
    """Return the length of the tensors, or -1 unless they lie end to end."""
    end = 0
    for tensor in sorted(header.tensors, key=lambda tensor: tensor.data_offsets):
        if tensor.data_offsets != (end, end + math.prod(tensor.shape)):
            return -1
        end = tensor.data_offsets[1]
    return end


def _shapes(info: StoreInfo) -> list[tuple[int, ...]]:
    train, test = info.train_count, info.test_count
    return [(train, *info.shape), (train,), (test, *info.shape), (test,)]


def _statistics(images: npt.NDArray[np.uint8]) -> tuple[float, float]:
    """Return mean and population standard deviation of all pixels, exact up to the last rounding."""
    import numpy as np

    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, len(images), STATISTICS_IMAGES):
        counts += np.bincount(images[start : start + STATISTICS_IMAGES].reshape(-1), minlength=256)
    values = np.arange(256)
    mean = float(counts @ values / counts.sum())
    variance = float(counts @ (values - mean) ** 2 / counts.sum())
    return mean, math.sqrt(variance)


def _write_atomically(path: Path, samples: Samples, info: StoreInfo) -> None:
    import numpy as np

    description = _Description(format=FORMAT, package=version("preflight-worker"), info=info)
    arrays = {
        "test_images": np.ascontiguousarray(samples.test.images),
        "test_labels": np.ascontiguousarray(samples.test.labels),
        "train_images": np.ascontiguousarray(samples.train.images),
        "train_labels": np.ascontiguousarray(samples.train.labels),
    }
    metadata: dict[str, JsonValue] = {"preflight": TypeAdapter(_Description).dump_json(description).decode()}
    with staged(path, _safetensors(arrays, metadata)) as commit:
        commit()


def _safetensors(arrays: Mapping[str, npt.NDArray[np.uint8]], metadata: JsonValue) -> Iterator[bytes | memoryview]:
    """Yield the file piece by piece (github.com/huggingface/safetensors, "Format"), in the order of `arrays`.

    The library's own `save_file` writes to a file whose name and lock are its own affair, and does not sync it.
    """
    header: dict[str, JsonValue] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": "U8", "shape": list(array.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for array in arrays.values():
        yield array.reshape(-1).data
