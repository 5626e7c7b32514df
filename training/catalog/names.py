"""Data sets by the names that jobs use: those that packages register, and those that were imported."""

from collections.abc import Sequence
from pathlib import Path

from preflight.contract.registry import DATASETS, find, names
from preflight.errors import InvalidConfig
from training.catalog.catalog import Catalog
from training.data.dataset_info import DatasetInfo
from training.data.prepare import prepared


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
    """Return what the store of a data set holds; None: it is registered and has to be prepared.

    Raises:
        InvalidConfig: there is no such data set.
        DatasetError: the store of an imported one is missing or damaged.
    """
    if find(DATASETS, name) is not None:
        return prepared(name, data_dir, cache_dir)
    catalog = Catalog(data_dir)
    return catalog.info(catalog.find(name))
