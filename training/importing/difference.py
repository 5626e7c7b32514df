"""Difference between two versions of imported data, by the content of their pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import JsonValue

from preflight.errors import DatasetError
from training.catalog.catalog import Catalog
from training.catalog.version import Version

if TYPE_CHECKING:
    from training.importing.rows import Rows

MOST = 100
"""Most names of classes that are listed."""


def compare(catalog: Catalog, before: Version, after: Version) -> dict[str, JsonValue]:
    """Return how many pictures were added, removed, given another class, and moved to another side of the split.

    Raises:
        DatasetError: the rows of a version cannot be read.
    """
    old, new = read_rows(catalog, before), read_rows(catalog, after)
    names = [[each.name for each in version.classes] for version in (before, after)]
    old_of: dict[bytes, set[tuple[str, int]]] = {}  # content -> class and side of each sample that has it
    for row in old:
        old_of.setdefault(bytes(row["content"]), set()).add((names[0][int(row["label"])], int(row["side"])))
    kept = set()
    added = relabelled = moved = 0
    for row in new:
        content = bytes(row["content"])
        places = old_of.get(content)
        if places is None:
            added += 1
            continue
        kept.add(content)
        relabelled += names[1][int(row["label"])] not in {label for label, _ in places}
        moved += int(row["side"]) not in {side for _, side in places}
    return {
        "before": before.reference, "after": after.reference, "added": added,
        "removed": len(old_of) - len(kept), "relabelled": relabelled, "moved": moved,
        "classes_added": [*[name for name in names[1] if name not in set(names[0])][:MOST]],
        "classes_removed": [*[name for name in names[0] if name not in set(names[1])][:MOST]],
        "same_form": before.shape == after.shape and before.asked.get("inverted") == after.asked.get("inverted"),
    }  # fmt: skip


def read_rows(catalog: Catalog, version: Version) -> Rows:
    """Map the rows of a version, in the order of its store; raises `DatasetError`."""
    import numpy as np

    path = catalog.rows(version.sha256)
    try:
        rows: Rows = np.load(path, "r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{path} cannot be read ({error}); import {version.reference} again", field=version.reference
        ) from error
    return rows
