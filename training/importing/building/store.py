"""Writer of the store of an import: in pieces, so that it may be larger than memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import numpy.typing as npt

from preflight.files.atomic_files import staged
from training.catalog.version import content_header, content_sha256
from training.data.dataset_info import DatasetInfo, to_metadata
from training.importing.rows import save_array
from training.importing.shards import TEST, TRAIN, VALIDATION
from training.system.safetensors_file import Layout, safetensors_header

if TYPE_CHECKING:
    from preflight.pictures.form import Form
    from training.importing.rows import Rows

BLOCK: Final = 4 << 20
"""Bytes of pictures that are gathered at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Content of the store to write."""

    train: npt.NDArray[np.int64]
    """Rows for training in their order; those that validate are last."""
    test: npt.NDArray[np.int64]
    validation: int
    """Number of rows at the end of `train` that validate."""

    @classmethod
    def of(cls, rows: Rows, sides: npt.NDArray[np.uint8], kept: npt.NDArray[np.bool_]) -> Plan:
        """Order the kept rows by their content: whatever part of a set is taken, it is mixed."""
        order = np.lexsort((rows["content"][:, 1], rows["content"][:, 0]))
        order = order[kept[order]]
        train, validation, test = (order[sides[order] == side] for side in (TRAIN, VALIDATION, TEST))
        return cls(np.concatenate((train, validation)), test, len(validation))

    def numbers(self, count: int) -> npt.NDArray[np.int64]:
        """Return the number in the store of each of `count` rows; -1 for one that is not in it."""
        found = np.full(count, -1, np.int64)
        rows = np.concatenate((self.train, self.test))
        found[rows] = np.arange(len(rows))
        return found


class Pictures(Protocol):
    """Samples with their pictures."""

    @property
    def form(self) -> Form:
        """Form of each picture."""

    @property
    def rows(self) -> Rows:
        """Facts of each sample."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Number of each sample's class in `names`."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the classes."""

    def pixels(self, wanted: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return some of the pictures [n, C, H, W]."""


class StoreWriter:
    """Writes one store; `sha256` is its content's once it is written."""

    def __init__(self, decoded: Pictures, plan: Plan, name: str, check: Callable[[], None]) -> None:
        self._decoded = decoded
        self._plan = plan
        self._check = check
        form, rows = decoded.form, decoded.rows[plan.train]
        pixels = len(rows) * form.bytes
        mean = float(int(rows["total"].sum()) / pixels)
        variance = int(rows["squares"].sum()) / pixels - mean**2
        self.shape = (form.channels, form.height, form.width)
        self.info = DatasetInfo(
            name=name, path=Path(f"{name}.safetensors"), shape=self.shape, classes=len(decoded.names),
            train_count=len(plan.train), test_count=len(plan.test), mean=mean, std=math.sqrt(max(variance, 1e-6)),
            sources=(), class_names=decoded.names,
            validation_count=plan.validation, inverted=form.invert,
        )  # fmt: skip
        counts = (len(plan.train) - plan.validation, plan.validation, len(plan.test))
        self._digest = content_sha256(content_header(self.shape, decoded.names, counts))

    @property
    def sha256(self) -> str:
        """SHA-256 of the content that was written."""
        return self._digest.hexdigest()

    def staged(self, path: Path) -> AbstractContextManager[Callable[[], None]]:
        """Write the store next to `path`; yield the function that puts it in place. Raises `OSError`."""
        return staged(path, self._chunks())

    def _chunks(self) -> Iterator[bytes | memoryview]:
        wide = len(self._decoded.names) > 256
        train, test = len(self._plan.train), len(self._plan.test)
        label = ("I16", 2) if wide else ("U8", 1)
        layouts = {
            "test_images": Layout("U8", (test, *self.shape), 1), "test_labels": Layout(label[0], (test,), label[1]),
            "train_images": Layout("U8", (train, *self.shape), 1), "train_labels": Layout(label[0], (train,), label[1]),
        }  # fmt: skip
        ordered, header = safetensors_header(layouts, to_metadata(self.info))
        yield header
        dtype = np.dtype("<i2") if wide else np.dtype("u1")
        for name in ordered:
            rows = self._plan.train if name.startswith("train") else self._plan.test
            for chunk in self._images(rows) if name.endswith("images") else (self._decoded.labels[rows].astype(dtype),):
                data = np.ascontiguousarray(chunk).data.cast("B") if chunk.size else memoryview(b"")
                self._digest.update(data)
                self._check()
                yield data

    def _images(self, rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.uint8]]:
        size = max(1, BLOCK // self._decoded.form.bytes)
        for start in range(0, len(rows), size):
            yield self._decoded.pixels(rows[start : start + size])


def write_rows(path: Path, decoded: Pictures, plan: Plan) -> None:
    """Write the rows of a store, training first, in its order, their labels being those of the store."""
    rows = decoded.rows[np.concatenate((plan.train, plan.test))]
    rows["label"] = decoded.labels[np.concatenate((plan.train, plan.test))]
    train = len(plan.train)
    rows["side"][: train - plan.validation] = TRAIN
    rows["side"][train - plan.validation : train] = VALIDATION
    rows["side"][train:] = TEST
    save_array(path, rows)
