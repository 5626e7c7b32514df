"""A version made of another one: some samples moved to another class, or left out. Nothing is decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from preflight.errors import DatasetError, InvalidConfig
from preflight.pictures.form import Form
from training.catalog.catalog import Catalog
from training.catalog.version import ClassCount, Version
from training.importing.shards import TEST, TRAIN, VALIDATION

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from training.importing.rows import Images, Rows

MOST_CHANGES: Final = 100_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class StoredRows:
    """The samples of a version, in the order of its store: those that train, then those of the test."""

    form: Form
    rows: Rows
    labels: npt.NDArray[np.int64]
    names: tuple[str, ...]
    images: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

    @classmethod
    def of(cls, catalog: Catalog, version: Version) -> StoredRows:
        """Map the store of a version; raises `DatasetError`."""
        import numpy as np

        from training.data.dataset_store import map_images
        from training.importing.difference import read_rows

        channels, height, width = version.shape
        form = Form(height=height, width=width, channels=channels, invert=version.asked.get("inverted") is True)
        rows = read_rows(catalog, version)
        labels = rows["label"].astype(np.int64)
        names = tuple(each.name for each in version.classes)
        return cls(form, rows, labels, names, map_images(catalog.store(version.sha256)))

    def pixels(self, wanted: npt.NDArray[np.int64]) -> Images:
        """Return the pictures [n, C, H, W] of these rows."""
        import numpy as np

        train, test = self.images
        found = np.empty((len(wanted), *train.shape[1:]), np.uint8)
        trains = wanted < len(train)
        found[trains], found[~trains] = train[wanted[trains]], test[wanted[~trains] - len(train)]
        return found


def revise(
    catalog: Catalog, reference: str, changes: Mapping[int, str | None], by: str,
    check: Callable[[], None] = lambda: None,
) -> Version:  # fmt: skip
    """Make the next version of a name from its newest one, which `reference` has to be.

    `changes` has the numbers of samples in the store and the names of their classes; None leaves one out.

    Raises:
        InvalidConfig: the version is not the newest, a sample or a class is not in it, or a class would be empty.
        DatasetError: it cannot be read or written.
    """
    version = catalog.find(reference)
    with catalog.importing(version.name) as work:
        newest = catalog.find(f"{version.name}@{catalog.numbers(version.name)[-1]}")
        if newest.version != version.version:
            raise InvalidConfig(
                f"{version.reference} is not the newest version any more; look at {newest.reference}",
                field="dataset",
            )
        before = StoredRows.of(catalog, version)
        _check(changes, before)
        try:
            return _write(catalog, version, before, changes, by, work, check)
        except OSError as error:
            raise DatasetError(
                f"{error.filename or work} cannot be written ({error.strerror or error}); make room there",
                field=reference,
            ) from error
        finally:
            for name in ("rows.npy", "store.safetensors"):
                (work / name).unlink(missing_ok=True)
            with suppress(OSError):  # what an import has decoded stays
                work.rmdir()


def _check(changes: Mapping[int, str | None], before: StoredRows) -> None:
    if not 0 < len(changes) <= MOST_CHANGES:
        raise InvalidConfig(f"{len(changes):,} samples are to be changed; give 1 to {MOST_CHANGES:,}", field="changes")
    known = {*before.names}
    for number, name in changes.items():
        if not 0 <= number < len(before.rows):
            raise InvalidConfig(
                f"there is no sample {number}; they are numbered from 0 to {len(before.rows) - 1}", field="changes"
            )
        if name is not None and name not in known:
            raise InvalidConfig(f"{name[:80]!r} is no class of the data set; use one that it has", field="changes")


def _write(
    catalog: Catalog, version: Version, before: StoredRows, changes: Mapping[int, str | None], by: str, work: Path,
    check: Callable[[], None],
) -> Version:  # fmt: skip
    import numpy as np

    from training.importing.building.store import Plan, StoreWriter, write_rows

    numbers = {name: number for number, name in enumerate(before.names)}
    labels, kept = before.labels.copy(), np.ones(len(before.rows), bool)
    for number, name in changes.items():
        if name is None:
            kept[number] = False
        else:
            labels[number] = numbers[name]
    sides = before.rows["side"]
    counts = {
        side: np.bincount(labels[kept & (sides == side)], minlength=len(numbers)) for side in (TRAIN, VALIDATION, TEST)
    }
    for number in np.flatnonzero(sum(counts.values()) == 0)[:1]:
        raise InvalidConfig(f"class {before.names[number]!r} would have no samples left", field="changes")
    after = dataclasses.replace(before, labels=labels)
    train, validation, test = (np.flatnonzero(kept & (sides == side)) for side in (TRAIN, VALIDATION, TEST))
    if not len(train) or not len(test):
        raise InvalidConfig("no sample would be left for training or for the test", field="changes")
    plan = Plan(np.concatenate((train, validation)), test, len(validation))
    writer = StoreWriter(after, plan, version.name, check)
    with writer.staged(work / "store.safetensors") as commit:
        commit()
    write_rows(work / "rows.npy", after, plan)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    left_out = sum(name is None for name in changes.values())
    revised: dict[str, JsonValue] = {
        "from": version.reference, "by": by, "at": now, "moved": len(changes) - left_out, "left_out": left_out,
    }  # fmt: skip
    found = dataclasses.replace(
        version, sha256=writer.sha256, created_at=now,
        classes=tuple(
            ClassCount(name=name, train=int(counts[TRAIN][label]), validation=int(counts[VALIDATION][label]),
                       test=int(counts[TEST][label]))
            for label, name in enumerate(before.names)
        ),
        report={**version.report, "samples": int(kept.sum()), "revised": revised},
    )  # fmt: skip

    def put() -> None:
        (work / "rows.npy").replace(catalog.rows(found.sha256))
        (work / "store.safetensors").replace(catalog.store(found.sha256))

    return catalog.register(found, put)
