"""Deletion of single samples: their pixels leave every version of a data set, and their hashes stay.

The hashes are written before any version changes. A version changes in one step, from its old content to the new one,
so that after a kill the same request continues with the versions that still have the samples. A process that has opened
an old content keeps it until it closes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT
from preflight.errors import DatasetError, InvalidConfig
from preflight.files.atomic_files import read_text, write_atomically
from training.catalog.catalog import Catalog
from training.catalog.version import Version
from training.importing.difference import read_rows
from training.importing.pairs import COUNTED, read_pairs
from training.importing.revision import StoredRows, cleared, rewrite
from training.importing.shards import EXAMPLES, TEST, TRAIN

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from training.importing.rows import Rows

    Bools = npt.NDArray[np.bool_]

MOST_ERASED: Final = 50_000
"""Most samples that may be deleted from one data set."""
MOST_AT_ONCE: Final = 20
MOST_NOTES: Final = 100
"""Deletions that a version names, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Erased:
    """A sample that was deleted."""

    content: str
    """`content` of its row, in hex."""
    source: str
    """`source` of its row, in hex; empty: the sample had no separate file."""
    of: str
    """SHA-256 of the version's content in which it was named, a colon, and its number there."""
    by: str
    at: str


ERASED: Final = TypeAdapter(tuple[Erased, ...])


@dataclass(frozen=True, slots=True)
class Erasure:
    """Request to delete samples: which ones, and who makes it."""

    dataset: str
    """Reference of a version, as `photos@2`."""
    sha256: str
    """SHA-256 of the content in which the samples have these numbers."""
    samples: tuple[int, ...]
    by: str


def read_erased(catalog: Catalog, name: str) -> tuple[Erased, ...]:
    """Return the samples that were deleted from a data set; raises `DatasetError` where that cannot be read."""
    path = catalog.erased(name)
    try:
        return ERASED.validate_json(read_text(path))
    except FileNotFoundError:
        return ()
    except (OSError, ValidationError) as error:
        raise DatasetError(
            f"{path}, which keeps deleted samples out, cannot be read ({error}); restore it", field=name
        ) from error


def is_erased(rows: Rows, erased: Sequence[Erased]) -> Bools:
    """Return which rows have the pixels or the file of a deleted sample, or the pixels of another row that has."""
    files = {bytes.fromhex(each.source) for each in erased if each.source}
    same = rows["content"][_among(rows["source"], files)]
    return _among(
        rows["content"], {*(bytes.fromhex(each.content) for each in erased), *(one.tobytes() for one in same)}
    )


def erase(
    catalog: Catalog, asked: Erasure, fetch: Callable[[Version], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
) -> list[Version]:  # fmt: skip
    """Delete samples from every version of a data set; return the versions that have changed.

    `fetch` brings the files of a version here where they are elsewhere. The request may be made again after a kill.

    Raises:
        InvalidConfig: there is no such sample, the version has changed since, or a version would be left without
            training or test samples.
        DatasetError: a version cannot be read or written.
    """
    name = catalog.find(asked.dataset).name
    with catalog.importing(name) as work:
        version, known = catalog.find(asked.dataset), read_erased(catalog, name)
        marks = {f"{asked.sha256}:{sample}" for sample in asked.samples}
        if not marks or not marks <= {each.of for each in known}:
            fetch(version)
            known = (*known, *described(catalog, version, asked))
        versions = [catalog.find(f"{name}@{number}") for number in catalog.numbers(name)]
        affected = []
        for each in versions:
            fetch(each)
            gone = is_erased(read_rows(catalog, each), known)
            if gone.any():
                _require_rest(catalog, each, gone)
                affected.append(each)
        write_atomically(catalog.erased(name), ERASED.dump_json(known))
        return [_without(catalog, each, known, asked.by, work, check) for each in affected]


def described(catalog: Catalog, version: Version, asked: Erasure) -> list[Erased]:
    """Return the records of the samples that are to be deleted; raises `InvalidConfig`."""
    if version.sha256 != asked.sha256:
        raise InvalidConfig(
            f"samples of {version.reference} were deleted since you looked at it, and the others have other numbers "
            "now; look at it again",
            field="dataset",
        )
    rows = read_rows(catalog, version)
    before = len(read_erased(catalog, version.name))
    if not 0 < len(asked.samples) <= min(MOST_AT_ONCE, MOST_ERASED - before):
        raise InvalidConfig(
            f"{len(asked.samples):,} samples are to be deleted and {before:,} were before; name 1 to {MOST_AT_ONCE:,}, "
            f"and at most {MOST_ERASED:,} of one data set, or remove it",
            field="sample",
        )
    at = datetime.now(UTC).isoformat(timespec="seconds")
    found = []
    for sample in asked.samples:
        if not 0 <= sample < len(rows):
            raise InvalidConfig(
                f"there is no sample {sample} in {version.reference}; they are numbered from 0 to {len(rows) - 1}",
                field="sample",
            )
        source = rows[sample]["source"]
        found.append(Erased(
            content=rows[sample]["content"].tobytes().hex(), source=source.tobytes().hex() if source.any() else "",
            of=f"{asked.sha256}:{sample}", by=asked.by, at=at,
        ))  # fmt: skip
    return found


def _require_rest(catalog: Catalog, version: Version, gone: Bools) -> None:
    sides = read_rows(catalog, version)["side"][~gone]
    if not (sides == TRAIN).any() or not (sides == TEST).any():
        raise InvalidConfig(
            f"{version.reference} would have no sample left for training or for the test; remove the version instead "
            f"(`preflight data remove {version.reference}`)",
            field="sample",
        )


def _without(
    catalog: Catalog, version: Version, known: Sequence[Erased], by: str, work: Path, check: Callable[[], None]
) -> Version:
    """Give a version a content without the deleted samples."""
    before = StoredRows.of(catalog, version)
    gone = is_erased(before.rows, known)
    with cleared(work, version.reference):
        found, put = rewrite(catalog, version, before, ~gone, work, check)
        notes = version.report.get("erased")
        note: dict[str, JsonValue] = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"), "by": by, "samples": int(gone.sum()),
            "sha256": version.sha256,
        }  # fmt: skip
        kept = [*(notes if isinstance(notes, list) else []), note][-MOST_NOTES:]
        report = {**found.report, "erased": [*kept], **_pairs_of(work, found.report)}
        found = dataclasses.replace(found, report=report)
        catalog.replace(found, put)
    return found


def _pairs_of(work: Path, report: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a report's fields about duplicates, without the names of deleted ones."""
    path = work / "pairs.jsonl"
    said: dict[str, JsonValue] = {}
    for kind, (field, count) in COUNTED.items():
        before = report.get(field)
        total, pairs = read_pairs(path, kind, 0, EXAMPLES) if path.exists() else (0, [])
        said[field] = {**(before if isinstance(before, dict) else {}), count: total,
                       "examples": [[*pair.names] for pair in pairs]}  # fmt: skip
    constant = report.get("constant")
    said["constant"] = {**(constant if isinstance(constant, dict) else {"samples": 0}), "examples": []}
    return said


def _among(hashes: npt.NDArray[np.uint64], wanted: Collection[bytes]) -> Bools:
    """Return which hashes [N, 2] are among the wanted ones."""
    import numpy as np

    firsts = np.asarray([int.from_bytes(each[:8], "little") for each in wanted], np.uint64)
    found: Bools = np.isin(hashes[:, 0], firsts)
    for place in np.flatnonzero(found):
        found[place] = hashes[place].tobytes() in wanted
    return found
