"""The first 6,400 training and 1,000 test samples of MNIST, for any version: entry points alone find it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from training.data.datasets import Dataset, LabeledImages, Samples

TRAIN, TEST = 6_400, 1_000


@dataclass(frozen=True, slots=True)
class FewDigits:
    """A data set of the digits 0 to 9, 28x28 pixels."""

    classes: int = 10
    shape: tuple[int, int, int] = (1, 28, 28)

    def sources(self, data_dir: Path) -> tuple[Path, ...]:
        """Return the files of the whole data set."""
        return _mnist().sources(data_dir)

    def load(self, data_dir: Path, *, download: bool) -> Samples:
        """Load the whole data set and cut it."""
        samples = _mnist().load(data_dir, download=download)
        return replace(samples, train=_first(samples.train, TRAIN), test=_first(samples.test, TEST))


def _mnist() -> Dataset:
    (point,) = entry_points(group="preflight.datasets", name="mnist")
    dataset: Dataset = point.load()
    return dataset


def _first(images: LabeledImages, count: int) -> LabeledImages:
    return replace(images, images=images.images[:count], labels=images.labels[:count])


FEW_DIGITS: Final = FewDigits()
