"""Problems of a data set: duplicates, labels that contradict each other, small classes, constant pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from pydantic import JsonValue

from preflight.numbers import plural
from training.importing.building.decoded import DecodedRows
from training.importing.building.duplicates import Duplicates
from training.importing.rows import MODES
from training.importing.shards import EXAMPLES, TEST, Refused
from training.importing.sources.base import Source

FEW: Final = 10
"""Samples below which a class is called small."""
IMBALANCE: Final = 10.0
"""Ratio of samples between the largest and the smallest class from which a warning mentions it."""
MOST_SIZES: Final = 10
MOST_SMALL: Final = 20

Bools = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Overlap:
    """Duplicates of a split data set."""

    leaked: Bools
    """Rows for training or validation of which the test set has a duplicate."""
    exact_across: int
    near_across: int


def find_overlap(found: Duplicates, sides: npt.NDArray[np.uint8], constant: Bools) -> Overlap:
    """Return the rows outside the test set that are also in it, and their numbers.

    Constant pictures are reported as such: as duplicates, a class of blank pictures would lose its training samples.
    """
    tested = np.zeros(len(sides), bool)
    np.logical_or.at(tested, found.exact, (sides == TEST) & ~constant)
    exact = tested[found.exact] & (sides != TEST)
    near = np.zeros(len(sides), bool)
    for left, right in ((0, 1), (1, 0)):
        pair = found.near[:, left], found.near[:, right]
        near[pair[0][tested[pair[1]]]] = True
    near = near[found.exact] & (sides != TEST) & ~exact
    return Overlap(exact | near, int(exact.sum()), int(near.sum()))


def report(
    decoded: DecodedRows, source: Source, sides: npt.NDArray[np.uint8], kept: Bools,
    duplicates: Duplicates, overlap: Overlap,
) -> dict[str, JsonValue]:  # fmt: skip
    """Return the findings, as docs/how-to/data.md describes it."""
    rows, name = decoded.rows, decoded.name
    counts = np.bincount(decoded.labels[kept], minlength=len(decoded.names))
    refused = [*source.refused, *decoded.refused]
    again = np.flatnonzero((duplicates.exact != np.arange(len(rows))) & ~rows["constant"])
    labels = decoded.labels
    torn = again[labels[again] != labels[duplicates.exact[again]]]
    near_torn = int((labels[duplicates.near[:, 0]] != labels[duplicates.near[:, 1]]).sum())
    constant = np.flatnonzero(rows["constant"])
    small = np.flatnonzero(counts < FEW)
    untested = np.flatnonzero(np.bincount(labels[kept & (sides == TEST)], minlength=len(counts)) == 0)
    ratio = float(counts.max() / counts.min()) if counts.min() else None
    found: dict[str, JsonValue] = {
        "samples": int(kept.sum()),
        "read": decoded.items or len(rows),
        "ignored_files": source.ignored,
        "sizes": _sizes(decoded),
        "modes": {MODES[mode]: int(count) for mode, count in _counted(rows["mode"])},
        "refused": {"samples": sum(each.count for each in refused), "reasons": [_as_json(each) for each in refused]},
        "exact_duplicates": {
            "samples": len(again), "across": overlap.exact_across,
            "examples": _pairs(again, duplicates.exact[again], name),
        },
        "near_duplicates": {
            "pairs": len(duplicates.near), "across": overlap.near_across,
            "examples": _pairs(duplicates.near[:, 0], duplicates.near[:, 1], name),
        },
        "left_out_of_training": int((~kept).sum()),
        "contradicting_labels": {
            "exact": len(torn), "near": near_torn, "examples": _pairs(torn, duplicates.exact[torn], name),
        },
        "constant": {"samples": len(constant), "examples": [name(int(row)) for row in constant[:EXAMPLES]]},
        "small_classes": [decoded.names[label] for label in small[:MOST_SMALL]],
        "untested_classes": [decoded.names[label] for label in untested[:MOST_SMALL]],
        "imbalance": ratio,
    }  # fmt: skip
    found["warnings"] = [*_warnings(found, len(small), len(untested)), *source.notes]
    return found


def _warnings(found: dict[str, JsonValue], small: int, untested: int) -> list[JsonValue]:
    """Return sentences on what should be looked at."""
    said: list[str] = []
    match found:
        case {
            "exact_duplicates": {"across": int(exact)}, "near_duplicates": {"across": int(near)},
            "contradicting_labels": {"exact": int(torn)}, "constant": {"samples": int(constant)},
            "left_out_of_training": int(left_out), "imbalance": imbalance,
        } if exact + near + torn + constant + small + untested or imbalance:  # fmt: skip
            if exact + near:
                done = "left out of training" if left_out else "kept, so the test accuracy is too good"
                said.append(
                    f"{plural(exact + near, 'training picture')} {'is' if exact + near == 1 else 'are'} also in the "
                    f"test set ({exact:,} equal, {near:,} nearly): {done}"
                )
            if torn:
                are = "picture is" if torn == 1 else "pictures are"
                said.append(f"{torn:,} {are} equal to one of another class; check the labels")
            if constant:
                said.append(f"{plural(constant, 'picture')} of one colour throughout")
            if small:
                said.append(f"{small} {'class has' if small == 1 else 'classes have'} fewer than {FEW} samples")
            if untested:
                said.append(f"{untested} {'class has' if untested == 1 else 'classes have'} no test sample")
            if isinstance(imbalance, float) and imbalance >= IMBALANCE:
                said.append(
                    f"the largest class has {imbalance:.1f} times as many samples as the smallest; "
                    "accuracy hides the small ones"
                )
    return [*said]


def _sizes(decoded: DecodedRows) -> list[JsonValue]:
    rows = decoded.rows
    packed = rows["height"].astype(np.int64) << 32 | rows["width"]
    return [
        {"height": int(size >> 32), "width": int(size & 0xFFFFFFFF), "samples": int(count)}
        for size, count in _counted(packed)[:MOST_SIZES]
    ]


def _counted(values: npt.NDArray[np.integer]) -> Sequence[tuple[int, int]]:
    found, counts = np.unique(values, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [(int(found[place]), int(counts[place])) for place in order]


def _pairs(left: Index, right: Index, name: Callable[[int], str]) -> list[JsonValue]:
    return [[name(int(one)), name(int(other))] for one, other in zip(left[:EXAMPLES], right[:EXAMPLES], strict=True)]


def _as_json(refused: Refused) -> JsonValue:
    return {name: [*value] if isinstance(value, tuple) else value for name, value in asdict(refused).items()}
