"""Arrays: pictures and labels in NumPy's and IDX files, of which a task reads its own part. Nothing is unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from preflight.pictures.decoding import Unusable
from training.importing.rows import Rows as Rows
from training.importing.shards import Shard

Pictures = npt.NDArray[np.uint8]
"""[N, H, W, channels]"""
CHANNELS: Final = (1, 3)


def read(shard: Shard) -> tuple[Pictures, list[str | None]]:
    """Return the pictures of a task, and their labels as text."""
    part = slice(shard.first, shard.first + shard.count)
    images = np.asarray(_mapped(Path(shard.path), shard, "images")[part])
    labels = np.asarray(_mapped(Path(str(shard.extra["labels"])), shard, "labels")[part])
    return as_uint8(_ordered(images, str(shard.extra["layout"])), float(str(shard.extra["scale"]))), as_text(labels)


def _mapped(path: Path, shard: Shard, role: str) -> npt.NDArray[np.generic]:
    """Return the array of a file, mapped; raises `Unusable` for one that would have to be unpickled."""
    offset = shard.extra.get(f"{role}_offset")
    if offset is None:
        try:
            found: npt.NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise Unusable(f"{path.name} holds Python objects, which are not read: {error}") from error
        return found
    shape = tuple(map(int, str(shard.extra[f"{role}_shape"]).split("x")))
    return np.memmap(path, dtype=str(shard.extra[f"{role}_dtype"]), mode="r", offset=int(str(offset)), shape=shape)


def _ordered(images: npt.NDArray[np.generic], layout: str) -> npt.NDArray[np.generic]:
    """Return [N, H, W, channels] of an array in a layout such as NHW or NCHW."""
    if layout == "NHW":
        return images[..., None]
    if layout == "NWH":  # EMNIST's
        return images.swapaxes(1, 2)[..., None]
    if layout == "NCHW":
        return images.transpose(0, 2, 3, 1)
    if layout == "flat":
        side = round(images.shape[1] ** 0.5)
        return images.reshape(len(images), side, side, 1)
    return images


def as_uint8(pixels: npt.NDArray[np.generic], scale: float) -> Pictures:
    """Return pixels 0..255 of pixels 0..255/`scale`; raises `Unusable` where one is beyond."""
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    if pixels.dtype.kind not in "iufb":
        raise Unusable(f"pixels are {pixels.dtype}, not numbers")
    scaled = pixels.astype(np.float64) * scale
    if not np.isfinite(scaled).all() or scaled.min(initial=0) < -0.5 or scaled.max(initial=0) > 255.5:
        raise Unusable(
            f"a pixel is {pixels[~((scaled >= -0.5) & (scaled <= 255.5))][0]}, beyond the range of the others"
        )
    return np.rint(scaled).clip(0, 255).astype(np.uint8)


def as_text(labels: npt.NDArray[np.generic]) -> list[str | None]:
    """Return labels [N], [N, 1] or one-hot [N, classes] as text; None for a value that is no label."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2:
        if is_one_hot(labels):
            return [str(label) for label in labels.argmax(1)]
        if labels.dtype.kind in "bf" or labels.max(initial=0) <= 1:
            raise Unusable(
                f"labels have {labels.shape[1]} columns, of which not exactly one is 1; give each picture one class"
            )
        labels = labels[:, 0]
    if labels.dtype.kind == "f":
        return [str(int(label)) if np.isfinite(label) and label == int(label) else None for label in labels.tolist()]
    if labels.dtype.kind == "S":
        return [label.decode(errors="replace") for label in labels.tolist()]
    return [str(label) for label in labels.tolist()]


def is_one_hot(labels: npt.NDArray[np.generic]) -> bool:
    """Whether each row has a single one and otherwise zeros."""
    numbers = labels.astype(np.float64)
    return bool(((numbers == 0) | (numbers == 1)).all() and (numbers.sum(1) == 1).all())
