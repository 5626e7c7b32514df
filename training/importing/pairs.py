"""Duplicates of a version in pairs: a line of JSON for each, next to its store.

A line is `[kind, name, name, number, number]`: `e` for equal pictures of one class, `c` for equal ones of two classes,
`n` for nearly equal ones; then the names of both files, and their numbers in the store, -1 for one that is not in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from training.importing.building.duplicates import Duplicates
    from training.importing.rows import Rows

    Index = npt.NDArray[np.int64]

MOST: Final = 100_000
"""Most pairs of a kind that are kept."""
Kind = Literal["exact", "near", "contradicting"]
LETTERS: Final[dict[Kind, str]] = {"exact": "ec", "near": "n", "contradicting": "c"}
COUNTED: Final[dict[Kind, tuple[str, str]]] = {
    "exact": ("exact_duplicates", "samples"), "near": ("near_duplicates", "pairs"),
    "contradicting": ("contradicting_labels", "exact"),
}  # fmt: skip
"""Fields of a version's report that hold the number of pairs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two samples with the same picture, or nearly."""

    names: tuple[str, str]
    """Names of their files."""
    samples: tuple[int, int]
    """Their numbers in the store; -1: it is not in it."""


def write_pairs(
    path: Path, rows: Rows, labels: Index, numbers: Index, found: Duplicates, name: Callable[[int], str]
) -> None:
    """Write the pairs of an import; `numbers` are those of its rows in the store. Raises `OSError`."""
    import numpy as np

    again = np.flatnonzero((found.exact != np.arange(len(rows))) & ~rows["constant"])[:MOST]
    exact = np.stack((again, found.exact[again]), 1)
    with path.open("w") as file:
        for letter, pairs in (("e", exact), ("n", found.near[:MOST])):
            for left, right in pairs.tolist():
                kind = "c" if letter == "e" and labels[left] != labels[right] else letter
                file.write(_line(kind, (name(left), name(right)), (int(numbers[left]), int(numbers[right]))))


def rewrite_pairs(before: Path, after: Path, numbers: Index, labels: Index) -> None:
    """Write the pairs of a version whose samples have the new `numbers`; those with a sample that is gone are left out.

    `labels` are those of the samples by their old numbers. A version without the file gets none. Raises `OSError`.
    """
    if not before.exists():
        return
    with after.open("w") as file:
        for letter, pair in _lines(before):
            renumbered = [int(numbers[sample]) if sample >= 0 else -1 for sample in pair.samples]
            if any(new < 0 <= old for old, new in zip(pair.samples, renumbered, strict=True)):
                continue
            kind = letter
            if letter in LETTERS["exact"] and min(pair.samples) >= 0:
                kind = "e" if labels[pair.samples[0]] == labels[pair.samples[1]] else "c"
            file.write(_line(kind, pair.names, (renumbered[0], renumbered[1])))


def read_pairs(path: Path, kind: Kind, first: int, count: int) -> tuple[int, list[Pair]]:
    """Return how many pairs of a kind a version has, and `count` of them from the `first` on; raises `OSError`."""
    total, found = 0, []
    letters = tuple(f'["{letter}"' for letter in LETTERS[kind])
    with path.open() as file:
        for line in file:
            if line.startswith(letters):
                if first <= total < first + count:
                    found.append(_parsed(line)[1])
                total += 1
    return total, found


def _lines(path: Path) -> Iterator[tuple[str, Pair]]:
    with path.open() as file:
        for line in file:
            yield _parsed(line)


def _line(kind: str, names: tuple[str, str], samples: tuple[int, int]) -> str:
    return json.dumps([kind, *names, *samples], separators=(",", ":")) + "\n"


def _parsed(line: str) -> tuple[str, Pair]:
    kind, left, right, one, other = json.loads(line)
    return str(kind), Pair((str(left), str(right)), (int(one), int(other)))
