"""Preparation of a data set by its name: written once, found again later."""

from pathlib import Path

from preflight.contract import registry
from preflight.errors import DatasetError, InvalidConfig
from training.data import dataset_store
from training.data.dataset_info import DatasetInfo, Fingerprint, read_info
from training.data.datasets import Dataset, ExplainsAbsence, Samples, UnreadableFolder


def prepared(name: str, data_dir: Path, cache_dir: Path) -> DatasetInfo | None:
    """Return the description of the store of the data set `name`, or None if it has to be made; cheap, without torch.

    It is prepared again when it is damaged or of another format, and when its source files have changed. If they are
    gone and there are no others, or cannot be looked for, it is used as it is.

    Raises:
        InvalidConfig: `name` is not a usable data set.
    """
    dataset = _dataset(name)
    try:
        info = read_info(store_path(name, cache_dir))
        found = _fingerprints(dataset, data_dir)
    except UnreadableFolder:
        return info
    except (DatasetError, OSError):
        return None
    return info if found in ((), info.sources) else None


def explain_absence(name: str, data_dir: Path) -> str | None:
    """Return a sentence on what is in `data_dir` instead of the files of the data set `name`; None: nothing is.

    Raises:
        InvalidConfig: `name` is not a usable data set.
        UnreadableFolder: its files may be there.
    """
    dataset = _dataset(name)
    return dataset.explain_absence(data_dir) if isinstance(dataset, ExplainsAbsence) else None


def available(name: str, data_dir: Path, cache_dir: Path) -> bool:
    """Whether the data set `name` can be had without downloading: prepared, or its files lie in `data_dir`.

    Raises:
        PreflightError: `name` is not a usable data set, or its files there are damaged.
    """
    return prepared(name, data_dir, cache_dir) is not None or bool(_dataset(name).sources(data_dir))


def prepare(name: str, data_dir: Path, cache_dir: Path, *, download: bool = True) -> DatasetInfo:
    """Load and verify the data set `name` and write its store, `<cache_dir>/datasets/<name>.safetensors`.

    Several processes may do so at once: each writes its own file, and the last one to finish wins.

    Raises:
        InvalidConfig: `name` is not a usable data set.
        DatasetError: it is missing, damaged, cannot be fetched, or the store cannot be written.
    """
    dataset = _dataset(name)
    # Taken before reading: a file that changes meanwhile looks different next time, and is read again.
    try:
        before = _fingerprints(dataset, data_dir)
        samples = _samples(name, dataset, data_dir, download)
        sources = before or _fingerprints(dataset, data_dir)
    except OSError as error:
        raise DatasetError(
            f"{error.filename} of data set {name!r} cannot be read ({error.strerror})", field=name
        ) from error
    return dataset_store.write(store_path(name, cache_dir), name, samples, sources)


def _dataset(name: str) -> Dataset:
    loaded = registry.load(registry.DATASETS, "dataset", name)
    # A class has the same attributes as its instances, so it would pass for one.
    if isinstance(loaded, type) or not isinstance(loaded, Dataset):
        raise InvalidConfig(
            f"dataset {name!r} is registered as {loaded!r}, which is not a training.data.datasets.Dataset; "
            "register an object that has sources, load, classes and shape",
            field="dataset",
        )
    return loaded


def _samples(name: str, dataset: Dataset, data_dir: Path, download: bool) -> Samples:
    """Load a data set, and refuse a user's that differs from its own description."""
    try:
        samples = dataset.load(data_dir, download=download)
    except ValueError as error:
        raise DatasetError(f"data set {name!r} cannot be used: {error}", field=name) from error
    if (samples.classes, samples.shape) != (dataset.classes, dataset.shape):
        raise DatasetError(
            f"data set {name!r} says it has {dataset.classes} classes of images {dataset.shape}, "
            f"but loads {samples.classes} of {samples.shape}",
            field=name,
        )
    labels = samples.train.labels
    if (labels == labels[0]).all():
        raise DatasetError(
            f"data set {name!r} has one class only: all its {len(labels)} training labels are {labels[0]}; "
            "give it samples of two classes or more",
            field=name,
        )
    return samples


def store_path(name: str, cache_dir: Path) -> Path:
    """Return the path of a registered data set's store, which may not exist yet."""
    return cache_dir / "datasets" / f"{name}.safetensors"


def _fingerprints(dataset: Dataset, data_dir: Path) -> tuple[Fingerprint, ...]:
    return tuple(Fingerprint.of(path) for path in dataset.sources(data_dir))
