"""The imported data that the web service reaches: on a disk that it shares with workers, or in the object store."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from preflight.errors import DatasetError
from preflight.files.atomic_files import read_text
from training.catalog.catalog import Catalog
from training.catalog.shared import SharedCatalog
from training.catalog.version import Reference, Version
from training.importing.issues import Issues
from training.importing.pairs import COUNTED, Kind, Pair, read_pairs
from training.loop.issues_child import FOLDS, expected_seconds
from worker.config.settings import Settings
from worker.web.datasets.models import (
    ClassCounts,
    Dataset,
    DatasetDetail,
    DatasetIssues,
    DatasetPair,
    DatasetPairs,
    DatasetVersion,
)
from worker.web.routes.reads import TtlCache

MOST_COMPARED: Final = 200_000
"""Most samples of a version that is compared with the one before it."""
MOST_FETCHED: Final = 1 << 30
"""Largest store, in bytes, that is fetched to show its samples."""
PROCESSORS: Final = 2
"""Processors of the worker for which the cost of a search for wrong labels is estimated."""
PAIRS: Final = TypeAdapter(list[tuple[str, str]])


class Shelf:
    """Imported data, read again at most every half second. Its methods raise `InvalidConfig` and `DatasetError`."""

    def __init__(self, settings: Settings) -> None:
        """Read the data that the settings name."""
        self.catalog = Catalog(settings.data_dir)
        self._settings = settings
        self._listed: TtlCache[tuple[()], tuple[Dataset, ...]] = TtlCache(lambda _: self._list())
        self._details: TtlCache[str, DatasetDetail] = TtlCache(self._detail)

    def datasets(self) -> tuple[Dataset, ...]:
        """Return all data sets."""
        return self._listed.get(())

    def detail(self, reference: str) -> DatasetDetail:
        """Return a data set, with the version that a reference names."""
        return self._details.get(reference)

    def bytes(self) -> int:
        """Return the bytes of the stores on this disk."""
        total = 0
        for path in self.catalog.stores.glob("*.*"):
            with suppress(FileNotFoundError):  # removed meanwhile
                total += path.stat().st_size
        return total

    def store(self, reference: str) -> Path:
        """Return the path of a version's store, fetched where it is in the object store alone and small."""
        version = self.find(reference)
        path = self.catalog.store(version.sha256)
        if not path.exists() and self._is_fetched(version):
            most = round(self._settings.dataset_cache_gb * (1 << 30))
            return SharedCatalog(str(self._settings.dataset_url), self.catalog).fetch(version, most)
        if not path.exists():
            raise DatasetError(
                f"the pictures of {version.reference} are on the workers alone; `preflight data show` has the rest"
            )
        return path

    def _is_fetched(self, version: Version) -> bool:
        """Whether a store that is not here is fetched to show its samples."""
        return self._settings.dataset_url is not None and _bytes_of(version) <= MOST_FETCHED

    def pairs(self, reference: str, kind: Kind, first: int, count: int) -> DatasetPairs:
        """Return duplicates of a version; of one from an earlier release, those that its report names."""
        version = self.find(reference)
        path = self._beside(version, self.catalog.pairs(version.sha256))
        if path is None:
            report = version.report.get(COUNTED[kind][0])
            examples = report.get("examples") if isinstance(report, dict) else None
            pairs = [Pair((str(each[0]), str(each[1])), (-1, -1)) for each in PAIRS.validate_python(examples or [])]
            total = len(pairs)
            pairs = pairs[first : first + count]
        else:
            total, pairs = read_pairs(path, kind, first, count)
        return DatasetPairs(dataset=version.reference, total=total, pairs=tuple(map(_pair, pairs)))

    def issues(self, reference: str, first: int, count: int) -> DatasetIssues:
        """Return labels of a version that look wrong, as the last search found them."""
        version = self.find(reference)
        path = self._beside(version, self.catalog.issues(version.sha256))
        found = None if path is None else Issues.model_validate_json(read_text(path))
        total = 0 if found is None else len(found.issues)
        if found is not None:
            found = found.model_copy(update={"issues": found.issues[first : first + count]})
        seconds = expected_seconds(version.samples, version.shape, FOLDS, PROCESSORS)
        return DatasetIssues(
            dataset=version.reference, sha256=version.sha256, expected_seconds=seconds, found=found, total=total
        )

    def _beside(self, version: Version, path: Path) -> Path | None:
        """Return a file next to the store of a version, fetched where it is in the object store alone."""
        shared = self._shared()
        if shared is not None:
            with suppress(FileNotFoundError):
                shared.fetch_file(version, path)
        return path if path.exists() else None

    def find(self, reference: str) -> Version:
        """Return a version."""
        shared = self._shared()
        if shared is not None:
            shared.pull(Reference.parse(reference).name)
        return self.catalog.find(reference)

    def _shared(self) -> SharedCatalog | None:
        url = self._settings.dataset_url
        return None if url is None else SharedCatalog(url, self.catalog)

    def _list(self) -> tuple[Dataset, ...]:
        shared = self._shared()
        if shared is not None:
            shared.pull_all()
        versions: dict[str, list[Version]] = {}
        for version in self.catalog.versions():
            versions.setdefault(version.name, []).append(version)
        return tuple(Dataset(**_card(found, self.catalog.aliases())) for found in versions.values())

    def _detail(self, reference: str) -> DatasetDetail:
        chosen = self.find(reference)
        found = [self.catalog.find(f"{chosen.name}@{number}") for number in self.catalog.numbers(chosen.name)]
        before = [version for version in found if version.version < chosen.version]
        return DatasetDetail(
            **_card(found, self.catalog.aliases()) | {"warnings": _warnings(chosen)}, chosen=_version(chosen),
            classes=tuple(
                ClassCounts(name=each.name, train=each.train, validation=each.validation, test=each.test)
                for each in chosen.classes
            ),
            report={**chosen.report}, history=tuple(_version(each) for each in reversed(found)),
            changes=_quietly(lambda: self._changes(before[-1], chosen)) if before else None,
            has_samples=self.catalog.store(chosen.sha256).exists() or self._is_fetched(chosen),
        )  # fmt: skip

    def _changes(self, before: Version, after: Version) -> dict[str, object] | None:
        if max(before.samples, after.samples) > MOST_COMPARED:
            return None
        from training.importing.difference import compare

        return {**compare(self.catalog, before, after)}


def _card(versions: list[Version], aliases: dict[str, str]) -> dict[str, object]:
    newest = versions[-1]
    return {
        "name": newest.name, "newest": _version(newest), "versions": len(versions),
        "aliases": tuple(alias for alias, reference in aliases.items()
                         if Reference.parse(reference).name == newest.name),
        "warnings": _warnings(newest),
    }  # fmt: skip


def _warnings(version: Version) -> tuple[str, ...]:
    warnings = version.report.get("warnings")
    return tuple(str(each) for each in warnings) if isinstance(warnings, list) else ()


def _version(version: Version) -> DatasetVersion:
    revised = version.report.get("revised")
    return DatasetVersion(
        dataset=version.reference, version=version.version, sha256=version.sha256, created_at=version.created_at,
        source=version.source, kind=version.kind, samples=version.samples, shape=version.shape,
        classes=len(version.classes), by=str(revised.get("by")) if isinstance(revised, dict) else None,
    )  # fmt: skip


def _pair(pair: Pair) -> DatasetPair:
    left, right = (None if sample < 0 else sample for sample in pair.samples)
    return DatasetPair(names=pair.names, samples=(left, right))


def _quietly(action: Callable[[], dict[str, object] | None]) -> dict[str, object] | None:
    """Return the result of `action`; None where the rows of a version are not here."""
    try:
        return action()
    except (DatasetError, ImportError):
        return None


def _bytes_of(version: Version) -> int:
    channels, height, width = version.shape
    return version.samples * channels * height * width
