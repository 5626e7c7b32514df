"""The interface of a data set (`Dataset`) and the samples that it loads (`Samples`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from preflight.errors import DatasetError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class UnreadableFolder(DatasetError):
    """A folder that may hold a data set cannot be read."""


@dataclass(frozen=True, slots=True, eq=False)
class LabeledImages:
    """Images uint8 [N, C, H, W], 0 is background and 255 is ink, and their labels uint8 [N].

    Raises:
        ValueError: the arrays have other shapes or types, or N is 0.
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
        ValueError: a label is too large, or the shapes differ.
    """

    train: LabeledImages
    test: LabeledImages
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
    """Interface of an object, not a class, registered under the entry point group `preflight.datasets`."""

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


@runtime_checkable
class ExplainsAbsence(Protocol):
    """A data set that can say what is in a directory instead of its files."""

    def explain_absence(self, data_dir: Path) -> str | None:
        """Return a sentence on what is there; None: its files are there, or nothing that could be meant is."""
        ...


def _described(array: npt.NDArray[np.generic]) -> str:
    return f"{array.dtype.name} {list(array.shape)}"
