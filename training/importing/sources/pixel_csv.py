"""Tables of pixels: a label and the pixels of one picture in each line, as Kaggle's digit recognizer."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from training.importing.shards import ANY, Shard
from training.importing.sources.base import Source, refuse
from training.importing.sources.files import unpacked_gzip
from training.importing.sources.trees import SPLITS, entries

LABELS: Final = ("label", "class", "target", "y", "digit", "labels")
CHUNK: Final = 1 << 22
"""Bytes of a task."""
LOOK: Final = 256 << 10
"""Bytes at the start of a file from which its form is found."""
LEAST_PIXELS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of the pictures in a table."""

    header: int
    """Bytes of the first line, where that has names; 0 where it has numbers."""
    delimiter: str
    columns: int
    label: int
    shape: tuple[int, int, int]
    scale: float
    """Factor of the pixels: 255 where they are 0..1."""


def is_pixels(path: Path) -> bool:
    """Whether a text file has many numbers in each line."""
    try:
        rows = _start(path)[1]
    except (OSError, ValueError):
        return False
    return len(rows) > 1 and len(rows[1]) > LEAST_PIXELS and sum(map(_is_number, rows[1])) > 0.9 * len(rows[1])


def tables_in(root: Path) -> list[Path]:
    """Return the tables of pixels in a folder."""
    _, others = entries(root)
    tables = [root / name for name in others if name.lower().endswith((".csv", ".tsv", ".csv.gz", ".txt"))]
    return [path for path in tables if not path.is_symlink() and is_pixels(path)]


def read_pixels(paths: list[Path], work: Path, check: Callable[[], None]) -> Source:
    """Return the samples of tables of pixels; packed ones are unpacked below `work`.

    Raises:
        DatasetError: a table has no label, or no square number of pixels.
    """
    shards: list[Shard] = []
    notes: list[str] = []
    for path in paths:
        rows = _start(path)[1]
        if len(paths) > 1 and _label_column(rows[0]) is None and any(map(_is_text, rows[0])):
            notes.append(f"{path.name} has no label and is left out")
            continue
        packed = path.suffix.lower() == ".gz"
        table = unpacked_gzip(path, work / path.stem, check) if packed else path
        layout = find_layout(table, path.name)
        side = SPLITS.get(path.name.partition(".")[0].rpartition("_")[2].lower(), ANY) if len(paths) > 1 else ANY
        shards += _shards(table, layout, side)
    if not shards:
        raise refuse(f"{paths[0].parent} has no table with a label")
    return Source(kind="table of pixels", shards=tuple(shards), samples=0, notes=tuple(notes))


def find_layout(path: Path, name: str) -> Layout:
    """Return the layout of a table's pictures; raises `DatasetError`."""
    try:
        (delimiter, first_line), rows = _start(path)
    except (OSError, ValueError) as error:
        raise refuse(f"{name} cannot be read as a table of pixels ({error})") from error
    named = any(map(_is_text, rows[0]))
    body = rows[1 if named else 0 :]
    if not body:
        raise refuse(f"{name} has a header and no samples")
    columns = len(rows[0])
    label = _label_column(rows[0]) if named else 0
    if label is None:
        raise refuse(f"{name} has {columns} columns and none named label; name the column of the classes label")
    shape = _shape(columns - 1)
    if shape is None:
        hint = ", and no label" if _shape(columns) else ""
        raise refuse(
            f"{name} has {columns} columns{hint}, but needs a label and a square number of pixels, such as 785"
        )
    pixels = [cell for row in body for place, cell in enumerate(row) if place != label]
    numbers = [float(cell) for cell in pixels if _is_number(cell)]
    fractions = any(not number.is_integer() for number in numbers)
    scale = 255.0 if fractions and max(numbers) <= 1 else 1.0
    return Layout(
        header=first_line if named else 0, delimiter=delimiter, columns=columns, label=label, shape=shape,
        scale=scale,
    )  # fmt: skip


def _start(path: Path) -> tuple[tuple[str, int], list[list[str]]]:
    """Return delimiter, length of the first line in bytes, and the first rows; raises `OSError`, `ValueError`."""
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        text = file.read(LOOK)
    whole = text[: text.rfind(b"\n") + 1] if len(text) == LOOK else text
    if not whole:
        raise ValueError("it is empty, or a line is longer than 256 KiB")
    line = whole.partition(b"\n")[0]
    decoded = whole.decode("utf-8-sig", errors="replace")
    delimiter = max(",;\t", key=decoded.partition("\n")[0].count)
    rows = []
    for one in decoded.splitlines():
        with suppress(csv.Error):  # the child that reads it says why it is refused
            rows += [row] if (row := cells_of(one, delimiter)) else []
    if not rows:
        raise ValueError("it is empty")
    return (delimiter, len(line) + 1), rows[:200]


def cells_of(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line by itself: an open quote would take the lines behind it; raises `csv.Error`."""
    return next(csv.reader([line], delimiter=delimiter, strict=True), [])


def _label_column(header: list[str]) -> int | None:
    names = [name.strip().lower() for name in header]
    return next((names.index(name) for name in LABELS if name in names), None)


def _shape(pixels: int) -> tuple[int, int, int] | None:
    """Return height, width and channels of so many pixels; None: they make no square."""
    for channels in (1, 3):
        side = math.isqrt(pixels // channels)
        if pixels and side * side * channels == pixels:
            return side, side, channels
    return None


def _shards(path: Path, layout: Layout, side: int) -> Iterator[Shard]:
    """Yield the tasks of a table; `first` is set once the lines are counted."""
    size = path.stat().st_size
    for start in range(layout.header, size, CHUNK):
        yield Shard(
            kind="pixels", path=str(path), sides=(side,),
            extra={
                "start": start, "end": min(size, start + CHUNK), "columns": layout.columns, "label": layout.label,
                "delimiter": layout.delimiter, "scale": layout.scale, "shape": "x".join(map(str, layout.shape)),
                "whole": start == layout.header,
            },
        )  # fmt: skip


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _is_text(cell: str) -> bool:
    return not _is_number(cell)
