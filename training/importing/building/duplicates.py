"""Duplicates: pictures that are equal, and pictures that nearly are, as a photograph saved twice.

Equal ones have one hash of their pixels. Near ones share a word of the perceptual hash; those that do are compared with
their neighbours in the order of the hash, first by their thumbnails, then by their pixels: the mean difference must be
below `THUMBS` levels in the thumbnail, and below `PIXELS` of the mean distance of the pixels from their median.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from training.importing.rows import TABLES, THUMB, Images, Rows

NEIGHBOURS: Final = 3
"""Following rows with which each row of a bucket is compared."""
THUMBS: Final = 3
FURTHEST: Final = THUMBS * THUMB * THUMB
"""Sum of the differences of two thumbnails from which they are not near."""
SUM_AT, WORD_AT, ROW_MASK = np.uint64(24), np.uint64(40), np.uint64((1 << 24) - 1)
"""Positions in 64 bits of a thumbnail's sum (14 bits) and a word of the hash (`BITS`), behind the row's number."""
PIXELS: Final = 0.06
CONFIRMED: Final = 8 << 20
"""Bytes of pictures that are compared with as many others at a time."""

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Duplicates:
    """Rows that are the same picture; `near` has no constant pictures, which the report counts separately."""

    exact: Index
    """For each row, the first row with the same pixels; the row itself where there is none before it."""
    near: npt.NDArray[np.int64]
    """Pairs [P, 2] of rows that are nearly equal and not equal."""


def find_duplicates(rows: Rows, pixels: Callable[[Index], Images]) -> Duplicates:
    """Return the duplicates among rows; `pixels` returns the pictures of some of them."""
    first = _first_equal(rows)
    alone = np.flatnonzero((first == np.arange(len(rows))) & ~rows["constant"])
    pairs = _candidates(rows[alone])
    near = alone[pairs]
    kept = [near[:0]]
    step = max(1, CONFIRMED // pixels(near[:1, 0]).nbytes) if len(near) else 1
    for start in range(0, len(near), step):
        some = near[start : start + step]
        left, right = (pixels(each).reshape(len(some), -1) for each in some.T)
        difference = (np.maximum(left, right) - np.minimum(left, right)).mean(1)
        kept.append(some[difference < np.maximum(0.5, PIXELS * _spread(left))])
    return Duplicates(first, np.concatenate(kept))


def _first_equal(rows: Rows) -> Index:
    content = rows["content"].copy()
    order = np.argsort(content[:, 0], kind="stable")
    content = content[order]
    if ((content[1:, 0] == content[:-1, 0]) & (content[1:, 1] != content[:-1, 1])).any():  # by chance in 64 bits
        order = np.lexsort((rows["content"][:, 1], rows["content"][:, 0]))
        content = rows["content"][order]
    begins = np.ones(len(rows), bool)
    begins[1:] = (content[1:] != content[:-1]).any(1)
    starts = np.flatnonzero(begins)
    first = np.empty(len(rows), np.int64)
    first[order] = np.repeat(order[starts], np.diff(np.append(starts, len(rows))))
    return first


def _candidates(rows: Rows) -> Index:
    """Return pairs [P, 2] of rows with nearly equal thumbnails."""
    found = [np.empty(0, np.int64)]
    count = len(rows)
    thumbs = rows["thumb"].copy()
    sums = thumbs.sum(1, dtype=np.uint64)
    for table in range(TABLES):
        # One number for word, sum and row, by which one sort orders them: several times as fast as `lexsort`.
        keys = rows["hash"][:, table].astype(np.uint64) << WORD_AT | sums << SUM_AT | np.arange(count, dtype=np.uint64)
        keys.sort()
        words, order = keys >> WORD_AT, (keys & ROW_MASK).astype(np.int64)
        total = sums[order].astype(np.int64)
        for step in range(1, NEIGHBOURS + 1):
            near = (words[step:] == words[:-step]) & (total[step:] - total[:-step] < FURTHEST)
            same = np.flatnonzero(near)
            left, right = order[same], order[same + step]
            near = _distances(thumbs, left, right) < FURTHEST
            low, high = np.minimum(left[near], right[near]), np.maximum(left[near], right[near])
            found.append(low * count + high)
    pairs = np.unique(np.concatenate(found))
    return np.stack((pairs // max(1, count), pairs % max(1, count)), 1)


def _distances(thumbs: Images, left: Index, right: Index) -> npt.NDArray[np.int64]:
    """Return the sums of the differences of thumbnails."""
    one, other = thumbs.take(left, 0), thumbs.take(right, 0)
    distances: npt.NDArray[np.int64] = np.einsum(
        "ij->i", np.maximum(one, other) - np.minimum(one, other), dtype=np.int64
    )
    return distances


def _spread(flat: Images) -> npt.NDArray[np.float64]:
    """Return the mean distance of pixels [N, P] of pictures from their median: in a drawing, the share of its ink."""
    twice = (2 * np.median(flat, axis=1, keepdims=True)).astype(np.int16)  # halves come of an even number of pixels
    spread: npt.NDArray[np.float64] = abs(2 * flat.astype(np.int16) - twice).mean(1) / 2
    return spread
