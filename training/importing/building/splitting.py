"""Split into training, validation and test: by content alone, so that no sample changes sides when others come.

Each sample, or its group, has a number in [0, 1) from a hash. Those below the share of the test set are for the test;
of the others those whose second number is below the share of validation validate. So every class is split by the same
shares, up to chance. A class of two samples or more of which chance gives the test none gives it its lowest one.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from training.importing.form import Options
from training.importing.rows import Rows
from training.importing.shards import ANY, TEST, TRAIN, VALIDATION

_TEST_STREAM, _VALIDATION_STREAM = b"test", b"validation"


def assign_sides(rows: Rows, labels: npt.NDArray[np.int64], options: Options) -> npt.NDArray[np.uint8]:
    """Return the side of each row: the given one, or one drawn from its content or its group.

    A source that has test samples gets no others, and one that has validation samples no others of those.
    """
    sides = rows["side"].copy()
    given = set(np.unique(sides).tolist())
    open_ = (sides == ANY) | (sides == TRAIN) if TEST not in given else np.zeros(len(rows), bool)
    keys = np.where(rows["group"] != 0, rows["group"], rows["content"][:, 0])
    sides[sides == ANY] = TRAIN
    if open_.any() and options.test > 0:
        draws = _uniform(keys, _TEST_STREAM)
        chosen = open_ & (draws < options.test)
        sides[chosen] = TEST
        _represent(sides, labels, draws, open_, rows["group"])
    if VALIDATION not in given and options.validation > 0:
        sides[(sides == TRAIN) & (_uniform(keys, _VALIDATION_STREAM) < options.validation)] = VALIDATION
    return sides


def _represent(
    sides: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], draws: npt.NDArray[np.float64],
    open_: npt.NDArray[np.bool_], groups: npt.NDArray[np.uint64],
) -> None:  # fmt: skip
    """Give the test a sample of each class that has two and none there; one of a group is not taken from it."""
    counts = np.bincount(labels)
    tested = np.bincount(labels[sides == TEST], minlength=len(counts))
    for label in np.flatnonzero((counts > 1) & (tested == 0)):
        own = np.flatnonzero((labels == label) & open_ & (groups == 0))
        if len(own) > 1:
            sides[own[draws[own].argmin()]] = TEST


def _uniform(keys: npt.NDArray[np.uint64], stream: bytes) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) from 64-bit keys: the finalizer of SplitMix64, keyed by the stream."""
    salt = np.uint64(int.from_bytes(hashlib.blake2b(stream, digest_size=8).digest(), "little"))
    mixed = keys ^ salt
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53
