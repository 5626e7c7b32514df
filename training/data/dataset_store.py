"""Prepared data set: one safetensors file of uint8 tensors, int16 for labels of more than 256 classes, mapped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preflight.errors import DatasetError
from preflight.files.atomic_files import staged
from training.data.dataset_info import DatasetInfo, Fingerprint, damaged, info_of, opened, tensor_places, to_metadata
from training.system.digests import Digests
from training.system.safetensors_file import TensorView, safetensors_chunks

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from training.data.datasets import Samples

STATISTICS_IMAGES: Final = 4096
"""Images counted at a time: np.bincount makes an int64 copy of what it counts, eight times its size."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedDataset:
    """Uint8 tensors on the CPU, views of the mapped file; the mapping is copy-on-write."""

    info: DatasetInfo
    train_images: torch.Tensor
    """[N, C, H, W], 0 is background and 255 is ink."""
    train_labels: torch.Tensor
    """[N]"""
    test_images: torch.Tensor
    """[M, C, H, W]"""
    test_labels: torch.Tensor
    """[M]"""


def write(path: Path, name: str, samples: Samples, sources: tuple[Fingerprint, ...]) -> DatasetInfo:
    """Write `samples` as the store at `path`, whole or not at all, and return its description.

    Raises:
        DatasetError: the file cannot be written.
    """
    mean, std = _statistics(samples.train.images)
    info = DatasetInfo(
        name=name,
        path=path,
        shape=samples.shape,
        classes=samples.classes,
        train_count=len(samples.train.labels),
        test_count=len(samples.test.labels),
        mean=mean,
        std=std,
        sources=sources,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, samples, info)
    except OSError as error:
        raise DatasetError(
            f"the prepared data set {path} cannot be written ({error.strerror}); "
            "make its directory writable and free space on the disk",
            field=str(path),
        ) from error
    return info


def open_dataset(path: Path) -> PreparedDataset:
    """Map the store at `path`; only what is touched is read, and no image is copied.

    Raises:
        DatasetError: as `read_info`.
    """
    from safetensors import SafetensorError, safe_open

    with opened(path) as file:
        info = info_of(file, path)
        try:
            # safetensors and torch open a path twice: by the descriptor both find this file, also when another process
            # puts a new one in its place meanwhile.
            with safe_open(f"/proc/self/fd/{file.fileno()}", framework="pt") as store:
                return PreparedDataset(
                    info=info,
                    train_images=store.get_tensor("train_images"),
                    train_labels=store.get_tensor("train_labels"),
                    test_images=store.get_tensor("test_images"),
                    test_labels=store.get_tensor("test_labels"),
                )
        except (OSError, SafetensorError) as error:
            raise damaged(path, f"safetensors says {error}") from error


def read_test_images(path: Path, samples: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return the test images [n, C, H, W] with these numbers, n >= 1, and read no other; without torch.

    Raises:
        DatasetError: the store cannot be read.
    """
    import numpy as np
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            images = file.get_slice("test_images")
            return np.concatenate([images[sample : sample + 1] for sample in samples])
    except (OSError, SafetensorError) as error:
        raise damaged(path, f"safetensors says {error}") from error


def map_images(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Return the training and test images [N, C, H, W] of the store at `path`, mapped; without torch.

    Raises:
        DatasetError: the store cannot be read.
    """
    import numpy as np

    with opened(path) as file:
        info, places = info_of(file, path), tensor_places(file, path)
    train, test = (
        np.memmap(path, np.uint8, "r", place.offset, (place.count, *info.shape))
        for place in (places["train_images"], places["test_images"])
    )
    return train, test


def read_train_labels(path: Path) -> npt.NDArray[np.integer]:
    """Return the labels [N] of the training samples, and read nothing else; without torch.

    Raises:
        DatasetError: the store cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            labels: npt.NDArray[np.integer] = file.get_tensor("train_labels")
    except (OSError, SafetensorError) as error:
        raise damaged(path, f"safetensors says {error}") from error
    return labels


def checksum(info: DatasetInfo, digests: Digests) -> str:
    """Return the sha256, in hex, of the tensors in the store: of the data alone, wherever and whenever it was made.

    It is taken from `digests` where the store was hashed before.

    Raises:
        DatasetError: the store cannot be read.
    """
    try:
        with info.path.open("rb") as file:
            file.seek(8 + int.from_bytes(file.read(8), "little"))
            return digests.sha256(file)
    except OSError as error:
        raise DatasetError(
            f"the prepared data set {info.path} cannot be read ({error.strerror}); prepare it again",
            field=str(info.path),
        ) from error


def _statistics(images: npt.NDArray[np.uint8]) -> tuple[float, float]:
    """Return mean and population standard deviation of all pixels, exact up to the last rounding."""
    import numpy as np

    counts = np.zeros(256, dtype=np.int64)
    for start in range(0, len(images), STATISTICS_IMAGES):
        counts += np.bincount(images[start : start + STATISTICS_IMAGES].reshape(-1), minlength=256)
    values = np.arange(256)
    mean = float(counts @ values / counts.sum())
    variance = float(counts @ (values - mean) ** 2 / counts.sum())
    return mean, math.sqrt(variance)


def _write(path: Path, samples: Samples, info: DatasetInfo) -> None:
    import numpy as np

    arrays = {
        "test_images": samples.test.images, "test_labels": samples.test.labels,
        "train_images": samples.train.images, "train_labels": samples.train.labels,
    }  # fmt: skip
    views = {
        name: TensorView("U8", array.shape, np.ascontiguousarray(array).reshape(-1).data, 1)
        for name, array in arrays.items()
    }
    with staged(path, safetensors_chunks(views, to_metadata(info))) as commit:
        commit()
