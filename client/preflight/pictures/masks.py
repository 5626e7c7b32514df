"""Morphology and connected components of masks and grey pictures, in numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Grey = npt.NDArray[np.uint8]
    Mask = npt.NDArray[np.bool_]


def dilate(grey: Grey, side: int) -> Grey:
    """Return the maximum of each pixel's square of `side` pixels, uint8 [H, W]; pixels beyond an edge do not count.

    The square is centred; where `side` is even, it has one pixel more up and left.
    """
    import numpy as np

    found = grey
    for _ in range(2):
        found = found.T  # each axis once
        length, covered = found.shape[1], 1
        window = np.pad(found, ((0, 0), (side // 2, side - 1 - side // 2)))
        while covered < side:  # a maximum of two windows that overlap is that of a longer one
            shift = min(covered, side - covered)
            window = np.maximum(window[:, : window.shape[1] - shift], window[:, shift:])
            covered += shift
        found = window[:, :length]
    return np.ascontiguousarray(found)


def erode(grey: Grey, side: int) -> Grey:
    """Return the minimum of each pixel's square, which is that of `dilate` mirrored."""
    return 255 - dilate((255 - grey)[::-1, ::-1], side)[::-1, ::-1]


def closing(grey: Grey, side: int) -> Grey:
    """Return a picture whose dark parts that hold no square of `side` pixels are filled from around them."""
    return erode(dilate(grey, side), side)


def opening(grey: Grey, side: int) -> Grey:
    """Return a picture without the light parts that hold no square of `side` pixels."""
    return 255 - closing(255 - grey, side)


def opened(mask: Mask, side: int) -> Mask:
    """Return the parts of a mask that hold a square of `side` pixels."""
    import numpy as np

    return mask if side == 1 else opening(mask.astype(np.uint8), side) > 0


def widened(mask: Mask, side: int) -> Mask:
    """Return a mask in which each pixel has become a square of `side` pixels."""
    import numpy as np

    return dilate(mask.astype(np.uint8), side) > 0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of pixels; right and bottom lie outside."""

    left: int
    top: int
    right: int
    bottom: int

    @property
    def width(self) -> int:
        """Width in pixels."""
        return self.right - self.left

    @property
    def height(self) -> int:
        """Height in pixels."""
        return self.bottom - self.top

    def joined(self, other: Box) -> Box:
        """Return the smallest box around both."""
        return Box(
            min(self.left, other.left), min(self.top, other.top),
            max(self.right, other.right), max(self.bottom, other.bottom),
        )  # fmt: skip

    def gap(self, other: Box) -> int:
        """Return the pixels between both boxes, along the axis on which they are farther apart; 0: they touch."""
        across = max(self.left, other.left) - min(self.right, other.right)
        down = max(self.top, other.top) - min(self.bottom, other.bottom)
        return max(across, down, 0)

    def scaled(self, factor: int) -> Box:
        """Return the box in a picture `factor` times as large."""
        return Box(self.left * factor, self.top * factor, self.right * factor, self.bottom * factor)


@dataclass(frozen=True, slots=True)
class Part:
    """Pixels of a mask that are connected, diagonally too."""

    box: Box
    area: int
    """Number of pixels."""
    runs: int
    """Number of horizontal runs of pixels."""
    label: int


def components(mask: Mask) -> tuple[list[Part], npt.NDArray[np.int32]]:
    """Return the connected parts of a mask [H, W], the largest first, and int32 [H, W] of their labels, 0 for none."""
    import numpy as np

    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, begins = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    roots = _connected(rows.tolist(), begins.tolist(), ends.tolist(), mask.shape[0])
    names, index = np.unique(np.array(roots, dtype=np.int64), return_inverse=True)
    count = len(names)
    labels = np.zeros(mask.shape, dtype=np.int32)
    labels[mask] = np.repeat(index + 1, ends - begins)
    tops, bottoms = np.full(count, mask.shape[0]), np.zeros(count, dtype=np.int64)
    lefts, rights = np.full(count, mask.shape[1]), np.zeros(count, dtype=np.int64)
    np.minimum.at(tops, index, rows)
    np.maximum.at(bottoms, index, rows + 1)
    np.minimum.at(lefts, index, begins)
    np.maximum.at(rights, index, ends)
    areas = np.bincount(index, weights=ends - begins, minlength=count).astype(np.int64)
    runs = np.bincount(index, minlength=count)
    found = [
        Part(Box(int(lefts[at]), int(tops[at]), int(rights[at]), int(bottoms[at])), int(areas[at]), int(runs[at]),
             at + 1)
        for at in range(count)
    ]  # fmt: skip
    return sorted(found, key=lambda part: -part.area), labels


def _connected(rows: list[int], begins: list[int], ends: list[int], height: int) -> list[int]:
    """Return for each run of pixels, in the order of a scan, the first run that it is connected with."""
    parents = list(range(len(rows)))

    def root(run: int) -> int:
        while parents[run] != run:
            parents[run] = parents[parents[run]]
            run = parents[run]
        return run

    first = [0] * (height + 2)
    for row in rows:
        first[row + 1] += 1
    for row in range(height + 1):
        first[row + 1] += first[row]
    for row in range(1, height):
        above, last_above = first[row - 1], first[row]
        for run in range(first[row], first[row + 1]):
            while above < last_above and ends[above] < begins[run]:
                above += 1
            other = above
            while other < last_above and begins[other] <= ends[run]:
                one, two = root(run), root(other)
                parents[max(one, two)] = min(one, two)
                other += 1
    return [root(run) for run in range(len(rows))]
