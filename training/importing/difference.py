"""What changed between two versions of imported data, by the content of their pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import JsonValue

from preflight.errors import DatasetError
from training.catalog.catalog import Catalog
from training.catalog.version import Version

if TYPE_CHECKING:
    from training.importing.rows import Rows

MOST = 100
"""Names of classes that are listed."""


def compare(catalog: Catalog, before: Version, after: Version) -> dict[str, JsonValue]:
    """Return how many pictures were added, removed, given another class, and moved to another side of the split.

    Raises:
        DatasetError: the rows of a version cannot be read.
    """
    import numpy as np

    old, new = read_rows(catalog, before), read_rows(catalog, after)
    names = [[each.name for each in version.classes] for version in (before, after)]
    old_of = {bytes(content): place for place, content in enumerate(np.ascontiguousarray(old["content"]))}
    kept, relabelled, moved = set(), 0, 0
    added = 0
    for row in new:
        place = old_of.get(bytes(row["content"]))
        if place is None:
            added += 1
            continue
        kept.add(place)
        relabelled += names[0][int(old[place]["label"])] != names[1][int(row["label"])]
        moved += int(old[place]["side"]) != int(row["side"])
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
