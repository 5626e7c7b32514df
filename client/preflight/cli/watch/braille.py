"""Bounded curves, drawn with braille characters of four by two dots."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

MAX_POINTS: Final = 4_000
"""Most points of a curve, after which every other point is dropped; no terminal is as wide."""
BLANK: Final = 0x2800
"""The braille character without dots."""
DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Row, column -> bit of a dot."""


@dataclass(slots=True)
class Curve:
    """Values over increasing x; a value at an earlier x, from a resumed job, replaces those from there on."""

    points: list[tuple[float, float]] = field(default_factory=list)

    def add(self, x: float, value: float) -> None:
        """Append a value."""
        while self.points and self.points[-1][0] >= x:
            self.points.pop()
        self.points.append((x, value))
        if len(self.points) > MAX_POINTS:
            self.points = self.points[1::2]

    @property
    def range(self) -> tuple[float, float]:
        """Minimum and maximum; the curve must not be empty."""
        values = [value for _, value in self.points]
        return min(values), max(values)


def draw(points: Sequence[tuple[float, float]], end: float, width: int, height: int) -> list[str]:
    """Return `height` lines of `width` characters: x from 0 to `end`, the values scaled to the height."""
    columns = _columns(points, end, 2 * width)
    rows = _rows(columns, 4 * height)
    cells = [[BLANK] * width for _ in range(height)]
    before: int | None = None
    for column, row in enumerate(rows):
        if row is not None:
            # Dot all rows between two columns, so that a steep part is connected.
            first, last = (row, row) if before is None or before == row else _between(before, row)
            for each in range(first, last + 1):
                cells[each // 4][column // 2] |= DOTS[each % 4][column % 2]
        before = row
    return ["".join(map(chr, line)) for line in cells]


def _between(before: int, row: int) -> tuple[int, int]:
    """Return the first and last row from the neighbour of `before` to `row`."""
    return (before + 1, row) if before < row else (row, before - 1)


def _columns(points: Sequence[tuple[float, float]], end: float, count: int) -> list[float | None]:
    """Return the mean value in each column, interpolated between points; None before the first and after the last."""
    found: dict[int, list[float]] = {}
    for x, value in points:
        found.setdefault(min(count - 1, int(x / end * count)) if end > 0 else 0, []).append(value)
    means = {column: sum(values) / len(values) for column, values in sorted(found.items())}
    columns: list[float | None] = [means.get(column) for column in range(count)]
    known = list(means)
    for left, right in itertools.pairwise(known):
        for column in range(left + 1, right):
            share = (column - left) / (right - left)
            columns[column] = (1 - share) * means[left] + share * means[right]
    return columns


def _rows(columns: Sequence[float | None], count: int) -> list[int | None]:
    """Return the row of each value, the maximum in row 0; a constant curve is in the middle."""
    known = [value for value in columns if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if math.isclose(low, high):
        return [None if value is None else count // 2 for value in columns]
    return [None if value is None else round((high - value) / (high - low) * (count - 1)) for value in columns]
