"""A version made of another one: some samples moved to another class, or left out. Nothing is decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue

from preflight.errors import DatasetError, InvalidConfig
from preflight.pictures.form import Form
from training.catalog.catalog import Catalog
from training.catalog.version import ClassCount, Version
from training.importing.issues import rewrite_issues
from training.importing.pairs import rewrite_pairs
from training.importing.shards import TEST, TRAIN, VALIDATION

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from training.importing.rows import Images, Rows

MOST_CHANGES: Final = 100_000
STAGED: Final = ("store.safetensors", "rows.npy", "pairs.jsonl", "issues.json")
"""Files of a version in the working directory, until they are named by its hash."""


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


def revise(catalog: Catalog, reference: str, changes: Mapping[int, str | None], by: str) -> Version:
    """Make the next version of a name from its newest one, which `reference` has to be.

    `changes` has the numbers of samples in the store and the names of their classes; None leaves one out.

    Raises:
        InvalidConfig: the version is not the newest, a sample or a class is not in it, or a class would be empty.
        DatasetError: it cannot be read or written.
    """
    version = catalog.find(reference)
    with catalog.importing(version.name) as work:
        require_newest(catalog, version)
        before = StoredRows.of(catalog, version)
        _check(changes, before)
        labels, kept = _changed(changes, before)
        with cleared(work, reference):
            found, put = rewrite(catalog, version, dataclasses.replace(before, labels=labels), kept, work, lambda: None)
            left_out = sum(name is None for name in changes.values())
            now = datetime.now(UTC).isoformat(timespec="seconds")
            revised: dict[str, JsonValue] = {
                "from": version.reference, "by": by, "at": now, "moved": len(changes) - left_out, "left_out": left_out,
            }  # fmt: skip
            return catalog.register(
                dataclasses.replace(found, created_at=now, report={**found.report, "revised": revised}), put
            )


def require_newest(catalog: Catalog, version: Version) -> None:
    """Raise `InvalidConfig` where a newer version has come: somebody else has changed it."""
    newest = catalog.find(f"{version.name}@{catalog.numbers(version.name)[-1]}")
    if newest.version == version.version:
        return
    match newest.report.get("revised"):
        case {"by": str(by), "at": str(at)}:
            who = f", which {by} made at {at}"
        case _:
            who = f", which came at {newest.created_at}"
    raise InvalidConfig(
        f"{version.reference} is not the newest version any more; look at {newest.reference}{who}", field="dataset"
    )


@contextmanager
def cleared(work: Path, what: str) -> Iterator[None]:
    """Make the working directory, and remove what `rewrite` leaves there; raises `DatasetError` for an `OSError`."""
    try:
        work.mkdir(exist_ok=True)
        yield
    except OSError as error:
        raise DatasetError(
            f"{error.filename or work} cannot be written ({error.strerror or error}); make room there", field=what
        ) from error
    finally:
        for name in STAGED:
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


def _changed(
    changes: Mapping[int, str | None], before: StoredRows
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return the labels as they are changed, and which samples stay; raises `InvalidConfig`."""
    import numpy as np

    numbers = {name: number for number, name in enumerate(before.names)}
    labels, kept = before.labels.copy(), np.ones(len(before.rows), bool)
    for number, name in changes.items():
        if name is None:
            kept[number] = False
        else:
            labels[number] = numbers[name]
    for number in np.flatnonzero(np.bincount(labels[kept], minlength=len(numbers)) == 0)[:1]:
        raise InvalidConfig(f"class {before.names[number]!r} would have no samples left", field="changes")
    sides = before.rows["side"][kept]
    if not (sides == TRAIN).any() or not (sides == TEST).any():
        raise InvalidConfig("no sample would be left for training or for the test", field="changes")
    return labels, kept


def rewrite(
    catalog: Catalog, version: Version, after: StoredRows, kept: npt.NDArray[np.bool_], work: Path,
    check: Callable[[], None],
) -> tuple[Version, Callable[[], None]]:  # fmt: skip
    """Write the samples of a version that are kept to `work`.

    Return the version with its new content, and the function that puts its files in place. Raises `OSError`.
    """
    import numpy as np

    from training.importing.building.store import Plan, StoreWriter, write_rows

    sides = after.rows["side"]
    train, validation, test = (np.flatnonzero(kept & (sides == side)) for side in (TRAIN, VALIDATION, TEST))
    plan = Plan(np.concatenate((train, validation)), test, len(validation))
    writer = StoreWriter(after, plan, version.name, check)
    with writer.staged(work / STAGED[0]) as commit:
        commit()
    write_rows(work / STAGED[1], after, plan)
    numbers = plan.numbers(len(kept))
    rewrite_pairs(catalog.pairs(version.sha256), work / STAGED[2], numbers, after.labels)
    rewrite_issues(catalog.issues(version.sha256), work / STAGED[3], numbers, after.labels, after.names)
    counts = {
        side: np.bincount(after.labels[rows], minlength=len(after.names))
        for side, rows in ((TRAIN, train), (VALIDATION, validation), (TEST, test))
    }
    found = dataclasses.replace(
        version, sha256=writer.sha256,
        classes=tuple(
            ClassCount(name=name, train=int(counts[TRAIN][label]), validation=int(counts[VALIDATION][label]),
                       test=int(counts[TEST][label]))
            for label, name in enumerate(after.names)
        ),
        report={**version.report, "samples": int(kept.sum())},
    )  # fmt: skip
    return found, lambda: put_in_place(catalog, found.sha256, work)


def put_in_place(catalog: Catalog, sha256: str, work: Path) -> None:
    """Give the files that were staged in `work` their names in the catalog: the store last."""
    for name, path in zip(STAGED[2:], (catalog.pairs(sha256), catalog.issues(sha256)), strict=True):
        if (work / name).exists():
            (work / name).replace(path)
    (work / STAGED[1]).replace(catalog.rows(sha256))
    (work / STAGED[0]).replace(catalog.store(sha256))
