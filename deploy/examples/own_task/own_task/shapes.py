"""Discs, squares, triangles and crosses in any colour, at any place and of any size, on noise; 32x32 pixels.

`python -m own_task.shapes FOLDER` writes them as pictures in class folders, which `preflight data add` imports. As an
object, `SHAPES` is also a data set that is computed: `training/data/datasets.py` says what such a one offers.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from training.data.datasets import LabeledImages, Samples

SIDE = 32
SEED = 20_261_121
NAMES = ("disc", "square", "triangle", "cross")


@dataclass(frozen=True, slots=True)
class Shapes:
    """Drawn from a fixed seed, so that everybody has the same."""

    train: int = 6_000
    test: int = 1_000
    classes: int = 4
    shape: tuple[int, int, int] = (3, SIDE, SIDE)

    def sources(self, data_dir: Path) -> tuple[Path, ...]:  # noqa: ARG002 - of the interface
        """Return nothing: there are no files."""
        return ()

    def load(self, data_dir: Path, *, download: bool) -> Samples:  # noqa: ARG002 - of the interface
        """Draw all images."""
        random = np.random.default_rng(SEED)
        return Samples(train=_draw(random, self.train), test=_draw(random, self.test), classes=self.classes)


def _draw(random: np.random.Generator, count: int) -> LabeledImages:
    labels = random.integers(0, 4, count).astype(np.uint8)
    images = random.integers(0, 60, (count, 3, SIDE, SIDE)).astype(np.uint8)
    for image, label in zip(images, labels, strict=True):
        radius = random.integers(4, 11)
        across, down = random.integers(radius, SIDE - radius, 2)
        image[:, _inside(int(label), int(across), int(down), int(radius))] = random.integers(80, 256, (3, 1))
    return LabeledImages(images=images, labels=labels)


def _inside(label: int, across: int, down: int, radius: int) -> npt.NDArray[np.bool_]:
    """Return the pixels [32, 32] of a shape."""
    y, x = np.mgrid[:SIDE, :SIDE]
    x, y = x - across, y - down
    inside: npt.NDArray[np.bool_]
    match label:
        case 0:
            inside = x * x + y * y <= radius * radius
        case 1:
            inside = np.maximum(abs(x), abs(y)) <= radius * 0.8
        case 2:
            inside = (abs(x) * 2 <= y + radius) & (y <= radius * 0.8)
        case _:
            inside = (np.minimum(abs(x), abs(y)) <= radius * 0.25) & (np.maximum(abs(x), abs(y)) <= radius)
    return inside


SHAPES = Shapes()


def save(folder: Path) -> None:
    """Write all images below `folder`, as train/disc/0.png."""
    samples = SHAPES.load(folder, download=False)
    for side, part in (("train", samples.train), ("test", samples.test)):
        for name in NAMES:
            (folder / side / name).mkdir(parents=True, exist_ok=True)
        for number, (image, label) in enumerate(zip(part.images, part.labels, strict=True)):
            Image.fromarray(image.transpose(1, 2, 0)).save(folder / side / NAMES[label] / f"{number}.png")


if __name__ == "__main__":
    save(Path(sys.argv[1]))
