"""Pixels: rows of a table with a label and the pixels of a picture, as Kaggle's digit recognizer has them.

A task is a range of bytes: it has the lines that begin in it. Lines of whole numbers below 1,000 are parsed together
from their digits; a task with any other line is read again, line by line.
"""

from __future__ import annotations

import csv
import math
from codecs import BOM_UTF8
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from training.importing.decoding.arrays import Pictures
from training.importing.decoding.progress import Progress
from training.importing.shards import Shard
from training.importing.sources.pixel_csv import cells_of

LONGEST_LINE: Final = 1 << 20
"""Most bytes of a line."""
ZERO, NEWLINE, RETURN = 48, 10, 13


def read(shard: Shard, progress: Progress) -> tuple[Pictures, list[str | None]]:
    """Return the pictures [N, H, W, channels] of a task's lines, and their labels; None where a line is refused."""
    extra = shard.extra
    text = lines_of(Path(shard.path), int(str(extra["start"])), int(str(extra["end"])))
    columns, label = int(str(extra["columns"])), int(str(extra["label"]))
    delimiter, scale = str(extra["delimiter"]), float(str(extra["scale"]))
    table = _digits(text, columns, ord(delimiter)) if scale == 1 else None
    if table is not None and (table <= 255).all():
        labels: list[str | None] = [str(value) for value in table[:, label].tolist()]
        flat = np.delete(table, label, 1).astype(np.uint8) if label else table[:, 1:].astype(np.uint8)
    else:
        labels, flat = _line_by_line(text, shard, progress)
    height, width, channels = (int(part) for part in str(extra["shape"]).split("x"))
    return flat.reshape(len(flat), height, width, channels), labels


def lines_of(path: Path, start: int, end: int) -> bytes:
    """Return the lines of a file that begin in a range of bytes."""
    with path.open("rb") as file:
        file.seek(max(0, start - 1))
        if not start and file.read(len(BOM_UTF8)) != BOM_UTF8:
            file.seek(0)
        if start:
            file.readline(LONGEST_LINE)
        text = file.read(max(0, end - file.tell()))
        if text and not text.endswith(b"\n"):
            text += file.readline(LONGEST_LINE)
    return text


def _digits(text: bytes, columns: int, delimiter: int) -> npt.NDArray[np.int16] | None:
    """Return the numbers of lines of whole numbers below 1,000, [lines, columns]; None: there are others."""
    found = np.frombuffer(text if text.endswith(b"\n") else text + b"\n", np.uint8)
    if (found == RETURN).any():
        found = found[found != RETURN]
    digits = found - ZERO  # others wrap to 10 and more
    ends = np.flatnonzero(digits > 9)
    if len(ends) % columns:
        return None
    marks = found[ends].reshape(-1, columns)
    if not ((marks[:, :-1] == delimiter).all() and (marks[:, -1] == NEWLINE).all()):
        return None
    lengths = np.empty(len(ends), np.int64)
    np.subtract(ends[1:], ends[:-1], out=lengths[1:])
    lengths[:1] = ends[:1] + 1
    if lengths.min(initial=2) < 2 or lengths.max(initial=2) > 4:  # the mark behind it included
        return None
    values = digits[ends - 1].astype(np.int16)
    longer = np.flatnonzero(lengths > 2)
    values[longer] += 10 * digits[ends[longer] - 2].astype(np.int16)
    longest = longer[lengths[longer] > 3]
    values[longest] += 100 * digits[ends[longest] - 3].astype(np.int16)
    return values.reshape(-1, columns)


def _line_by_line(text: bytes, shard: Shard, progress: Progress) -> tuple[list[str | None], Pictures]:
    """Return labels and pixels uint8 [lines, columns - 1]; a line that cannot be used has no label."""
    extra = shard.extra
    columns, label, scale = int(str(extra["columns"])), int(str(extra["label"])), float(str(extra["scale"]))
    lines = [line for line in text.decode("utf-8", errors="replace").splitlines() if line.strip()]
    labels: list[str | None] = []
    flat = np.zeros((len(lines), columns - 1), np.uint8)
    for item, line in enumerate(lines):
        labels.append(None)
        if not progress.begins(item):
            continue
        try:
            row = cells_of(line, str(extra["delimiter"]))
        except csv.Error as error:
            progress.refuse(item, f"cannot be divided into columns ({error})")
            continue
        if len(row) != columns:
            progress.refuse(item, f"has {len(row)} columns instead of {columns}")
            continue
        name = row.pop(label).strip()
        try:
            numbers = np.asarray(row, dtype=np.float64) * scale
        except ValueError:
            progress.refuse(item, "has a pixel that is no number")
            continue
        if not name or not ((numbers >= -0.5) & (numbers <= 255.5)).all():
            progress.refuse(item, "has a pixel beyond 0 to 255" if name else "has no label")
            continue
        flat[item] = np.rint(numbers).clip(0, 255)
        labels[item] = whole(name)
    return labels, flat


def whole(label: str) -> str:
    """Return "3" for "3.0", and any other label as it is."""
    try:
        number = float(label)
    except ValueError:
        return label
    return str(int(number)) if math.isfinite(number) and number == int(number) and abs(number) < 2**53 else label
