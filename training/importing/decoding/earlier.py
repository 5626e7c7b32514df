"""The version before this import: pictures whose files have not changed are taken from its store, not decoded again."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np

from preflight.errors import DatasetError
from training.data.dataset_store import map_images
from training.importing.rows import MODES, Images

Found = tuple[Images, str, int, int]
"""Pixels [C, H, W], and mode, height and width of the picture in its file."""
OTHER: Final = 0
"""Number of a mode that has no name in a row."""


class Earlier:
    """Pictures of a version by the state of their files."""

    def __init__(self, rows: Path, store: Path) -> None:
        """Map both files; raises `OSError`, `ValueError`."""
        self._rows = np.load(rows, mmap_mode="r", allow_pickle=False)
        self._train, self._test = map_images(store)
        if len(self._rows) != len(self._train) + len(self._test):
            raise ValueError(f"{rows} is not of {store}")
        first = np.ascontiguousarray(self._rows["source"][:, 0])
        self._order = np.argsort(first, kind="stable")
        self._keys = first[self._order]

    def find(self, source: bytes) -> Found | None:
        """Return the picture of a file in the state `source`, a `source_key`; None: there is none."""
        low, high = np.frombuffer(source, "<u8")
        place = int(np.searchsorted(self._keys, low))
        if place == len(self._keys) or self._keys[place] != low:
            return None
        number = int(self._order[place])
        row = self._rows[number]
        if row["source"][1] != high or row["mode"] == OTHER:
            return None
        test = number - len(self._train)
        image = self._train[number] if test < 0 else self._test[test]
        return image, MODES[int(row["mode"])], int(row["height"]), int(row["width"])


@lru_cache(maxsize=1)
def open_earlier(rows: str, store: str) -> Earlier | None:
    """Return the version with these files; None where they cannot be used."""
    try:
        return Earlier(Path(rows), Path(store))
    except (OSError, ValueError, DatasetError):
        return None
