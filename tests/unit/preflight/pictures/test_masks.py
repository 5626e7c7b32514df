"""Morphology and components against slow, plain definitions."""

import numpy as np
import numpy.typing as npt
import pytest

from preflight.pictures.masks import Box, closing, components, dilate, erode, opened, opening


def slow(grey: npt.NDArray[np.uint8], side: int, before: int, largest: bool) -> npt.NDArray[np.uint8]:
    found = np.empty_like(grey)
    for row, column in np.ndindex(grey.shape):
        window = grey[max(0, row - before) : row - before + side, max(0, column - before) : column - before + side]
        found[row, column] = window.max() if largest else window.min()
    return found


@pytest.mark.parametrize("side", [1, 2, 3, 6, 7, 30])
def test_extremes_of_windows(side: int) -> None:
    grey = np.random.default_rng(side).integers(0, 256, (17, 23), dtype=np.uint8)
    assert (dilate(grey, side) == slow(grey, side, side // 2, True)).all()
    assert (erode(grey, side) == slow(grey, side, (side - 1) // 2, False)).all()
    assert (closing(grey, side) >= grey).all()
    assert (opening(grey, side) <= grey).all()
    assert (closing(closing(grey, side), side) == closing(grey, side)).all()


def test_what_holds_no_square_is_opened_away() -> None:
    mask = np.zeros((20, 20), dtype=bool)
    mask[2:8, 2:9] = mask[12:15, 1:19] = True
    kept = opened(mask, 4)
    assert (kept == (mask & (np.arange(20) < 10)[:, None])).all()


def test_connected_parts() -> None:
    """Diagonal neighbours are connected, a spiral is one part, and the largest part comes first."""
    mask = np.array([list(row) for row in (
        "#########..#",
        "........#..#",
        ".######.#...",
        ".#....#.#.#.",
        ".#.##.#.#..#",
        ".#..###.#...",
        ".########...",
    )]) == "#"  # fmt: skip
    parts, labels = components(mask)
    assert [part.area for part in parts] == [int(mask.sum()) - 4, 2, 2]
    assert parts[0].box == Box(0, 0, 9, 7)
    assert {part.box for part in parts[1:]} == {Box(11, 0, 12, 2), Box(10, 3, 12, 5)}
    assert ((labels > 0) == mask).all()
    assert parts[1].box.gap(parts[2].box) == 1
    assert components(np.zeros((3, 3), dtype=bool))[0] == []
