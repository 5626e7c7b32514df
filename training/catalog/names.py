"""Data sets by the names that jobs use: those that packages register, and those that were imported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from preflight.contract.registry import DATASETS, find, names
from preflight.errors import DatasetError, InvalidConfig
from training.catalog.catalog import Catalog
from training.data.builtin.catalog import IDX_DATASETS
from training.data.builtin.digits import DIGITS, TEST_SAMPLES, TRAIN_SAMPLES
from training.data.dataset_info import DatasetInfo, read_info
from training.data.prepare import prepared, store_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Size and shape of a data set."""

    name: str
    """Name, for imported data with the version: `photos@2`."""
    train: int
    """Training samples, those for validation included."""
    test: int
    classes: int
    shape: tuple[int, int, int]
    """Channels, height and width of an image."""
    validation: int | None = None
    """Last training samples that validate by default; None: as many as usual."""


def require_dataset(name: str, data_dir: Path, *, elsewhere: bool = False) -> None:
    """Raise `InvalidConfig` unless a package registers this data set or it was imported.

    `elsewhere`: there is an object store that may have it, which is asked when the job runs.
    """
    if find(DATASETS, name) is None and not elsewhere:
        Catalog(data_dir).find(name)


def known_datasets(data_dir: Path) -> Sequence[str]:
    """Return the names of all data sets, sorted, those of imported data also with each version."""
    catalog = Catalog(data_dir)
    imported = catalog.names()
    versions = (f"{name}@{number}" for name in imported for number in catalog.numbers(name))
    return sorted({*names(DATASETS), *imported, *versions})


def pin(name: str, data_dir: Path) -> str:
    """Return the version that a name stands for now, as `photos@2`; a registered data set has none.

    Raises:
        InvalidConfig: there is no such data set.
    """
    return name if find(DATASETS, name) is not None else Catalog(data_dir).find(name).reference


def stored_path(reference: str, data_dir: Path) -> Path | None:
    """Return the store of a version; None where it is not here."""
    catalog = Catalog(data_dir)
    try:
        path = catalog.store(catalog.find(reference).sha256)
    except InvalidConfig:
        return None
    return path if path.exists() else None


def stored_dataset(name: str, data_dir: Path, cache_dir: Path) -> DatasetInfo | None:
    """Return the description of a data set's store; None: it is registered and has to be prepared.

    Raises:
        InvalidConfig: there is no such data set.
        DatasetError: the store of an imported one is missing or damaged.
    """
    if find(DATASETS, name) is not None:
        return prepared(name, data_dir, cache_dir)
    catalog = Catalog(data_dir)
    return catalog.info(catalog.find(name))


def describe(name: str, data_dir: Path, cache_dir: Path) -> Facts | None:
    """Return size and shape of a data set, as far as they are known without loading it or importing its package."""
    try:
        if find(DATASETS, name) is not None:
            return _facts(name, read_info(store_path(name, cache_dir)))
        catalog = Catalog(data_dir)
        version = catalog.find(name)
        return _facts(version.reference, catalog.info(version))
    except (InvalidConfig, DatasetError):
        return _BUILTIN.get(name)


_BUILTIN: Final = {
    "digits": Facts(
        name="digits", train=TRAIN_SAMPLES, test=TEST_SAMPLES, classes=DIGITS.classes, shape=DIGITS.shape
    ),
    **{
        each.name: Facts(
            name=each.name, train=each.train_images.shape[0], test=each.test_images.shape[0], classes=each.classes,
            shape=each.shape,
        )
        for each in IDX_DATASETS
    },
}  # fmt: skip
"""Facts of data sets that are not prepared yet."""


def _facts(name: str, info: DatasetInfo) -> Facts:
    return Facts(name=name, train=info.train_count, test=info.test_count, classes=info.classes, shape=info.shape)
