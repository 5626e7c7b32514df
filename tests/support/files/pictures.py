"""Pictures for imports: small, of classes that a network tells apart, and the import of them in this process."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw
from pydantic import TypeAdapter

from training.catalog.catalog import Catalog
from training.catalog.version import Version
from training.importing.form import Options
from training.importing.run import Request, run_import
from training.importing.sources.detect import read_source

SHAPES = ("disc", "square", "cross", "ring")


def drawn(shape: str, seed: int, side: int = 28, mode: str = "L") -> Image.Image:
    """Return one picture of a class: light on dark, at a place and of a size that `seed` decides."""
    rng = np.random.default_rng(seed)
    picture = Image.new(mode, (side, side))
    draw = ImageDraw.Draw(picture)
    size = int(rng.integers(side // 3, side // 2 + 1))
    left, top = (int(place) for place in rng.integers(1, side - size - 1, 2))
    box = (left, top, left + size, top + size)
    light = int(rng.integers(150, 256))
    ink: int | tuple[int, int, int] = light if mode == "L" else (light, light // 2, 20)
    if shape == "disc":
        draw.ellipse(box, fill=ink)
    elif shape == "square":
        draw.rectangle(box, fill=ink)
    elif shape == "ring":
        draw.ellipse(box, outline=ink, width=2)
    else:
        draw.line((left, top, left + size, top + size), fill=ink, width=2)
        draw.line((left, top + size, left + size, top), fill=ink, width=2)
    return picture


def save_tree(
    root: Path, count: int = 30, classes: Sequence[str] = SHAPES, side: int = 28, mode: str = "L", first: int = 0
) -> Path:
    """Write `count` pictures of each class into folders of their names; return the root."""
    for number, name in enumerate(classes):
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(first, first + count):
            shape = SHAPES[number % len(SHAPES)]
            drawn(shape, 10_000 * number + seed, side, mode).save(folder / f"{seed}.png")
    return root


def pixels(count: int = 30, classes: int = 4, side: int = 28) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return pictures uint8 [N, side, side] and their labels [N], `count` of each class."""
    images = [np.asarray(drawn(SHAPES[label % 4], 10_000 * label + seed, side)) for label in range(classes)
              for seed in range(count)]  # fmt: skip
    return np.stack(images), np.repeat(np.arange(classes, dtype=np.uint8), count)


def imported(data_dir: Path, source: Path, name: str = "mine", **options: object) -> Version:
    """Import a source as the command does, with one process; return the version."""
    return run(data_dir, source, name, **options)[0]


def run(data_dir: Path, source: Path, name: str = "mine", **options: object) -> tuple[Version, bool]:
    """Import a source; return the version, and whether it is new."""
    asked = TypeAdapter(Options).validate_python(options)
    request = Request(
        name=name, source=str(source), options=asked, processes=1, environment={**os.environ},
    )  # fmt: skip
    return run_import(
        request, Catalog(data_dir), lambda work, check: read_source(source, asked, work, check), lambda _: None
    )
