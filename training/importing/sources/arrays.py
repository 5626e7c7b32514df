"""Arrays: NumPy's `.npz` and `.npy`, and IDX files, of which only headers are read here."""

from __future__ import annotations

import lzma
import math
import re
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from preflight.pictures.form import MAX_PIXELS
from training.data.builtin.names import role_of
from training.importing.shards import ANY, TEST, TRAIN, VALIDATION, Shard
from training.importing.sources.base import Source, check_samples, refuse
from training.importing.sources.files import copy_bounded, made_of, start_of, unpacked_gzip

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TASK: Final = 16 << 20
"""Bytes of an array that one task takes."""
LOOKED_AT: Final = 2_000
"""Pictures from which the scale of pixels is found."""
NAME: Final = re.compile(
    r"(?:(?P<split>train|training|val|valid|validation|test|testing)_)?(?P<kind>x|images?|data|imgs?|y|labels?|targets?)"
    r"(?:_(?P<after>train|training|val|valid|validation|test|testing))?"
)
"""Name of an array, in small letters."""
PICTURES: Final = ("x", "image", "images", "data", "img", "imgs")
SIDES: Final = {"tr": TRAIN, "va": VALIDATION, "te": TEST}
GZIP: Final = b"\x1f\x8b"
"""First bytes of a gzip file (RFC 1952)."""
IDX_TYPES: Final = {8: "|u1", 9: "|i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An array in a file."""

    path: Path
    name: str
    """Name in messages."""
    shape: tuple[int, ...]
    dtype: str
    offset: int | None = None
    """Offset of its first byte in an IDX file; None: the file is NumPy's."""

    def mapped(self) -> npt.NDArray[np.generic]:
        """Return the array, mapped."""
        import numpy as np

        if self.offset is not None:
            return np.memmap(self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=self.shape)
        found: npt.NDArray[np.generic] = np.load(self.path, mmap_mode="r", allow_pickle=False)
        return found


@dataclass(frozen=True, slots=True)
class Pair:
    """Pictures, their labels and their side."""

    images: Stored
    labels: Stored
    side: int
    transposed: bool = False


def read_npz(path: Path, work: Path, check: Callable[[], None]) -> Source:
    """Return the samples of an archive of arrays, whose members are unpacked below `work`.

    Raises:
        DatasetError: it is damaged, holds Python objects, or has no pictures with labels.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for number, member in enumerate(archive.infolist()):
                name = member.filename.removesuffix(".npy")
                if _role(name) is None:
                    continue
                target = work / f"array-{number}.npy"
                with made_of(path, target) as is_made:
                    if not is_made:
                        with archive.open(member) as file:
                            copy_bounded(file, target, member.compress_size, f"{name} in {path.name}", check)
                arrays[name] = stored(target, f"{path.name}, {name}")
    except (
        zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, NotImplementedError, EOFError,
    ) as error:  # fmt: skip
        raise refuse(
            f"{path.name} is no whole archive of arrays ({str(error)[:200]}); save it again with numpy.savez"
        ) from error
    return _source("archive of arrays", _pairs(arrays, path.name))


def read_npy(root: Path, names: list[str]) -> Source:
    """Return the samples of `.npy` files in a folder; raises `DatasetError`."""
    arrays = {Path(name).stem: stored(root / name, name) for name in names if _role(Path(name).stem) is not None}
    return _source("pair of arrays", _pairs(arrays, root.name))


def stored(path: Path, name: str) -> Stored:
    """Return the array in a `.npy` file; raises `DatasetError` for one that would have to be unpickled."""
    import numpy as np

    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, TypeError, EOFError, OverflowError, RecursionError, MemoryError) as error:
        if "allow_pickle" in str(error) or "Python objects" in str(error):
            raise refuse(
                f"{name} holds Python objects, which could run a program when they are read; save numbers or texts"
            ) from error
        raise refuse(f"{name} is damaged ({error}); save it again with numpy.save") from error
    return Stored(path=path, name=name, shape=found.shape, dtype=found.dtype.str)


def idx_files(root: Path, names: list[str]) -> list[str]:
    """Return the names of the IDX files in a folder, by their names and first bytes."""
    return [name for name in names if role_of(name) is not None and _starts_like_idx(root / name)]


def read_idx(root: Path, names: list[str], work: Path, check: Callable[[], None]) -> Source:
    """Return the samples of pairs of IDX files in a folder; packed ones are unpacked below `work`.

    Raises:
        DatasetError: one is damaged, or pictures have no labels.
    """
    found: dict[tuple[str, str], dict[str, Stored]] = {}
    for name in names:
        role = role_of(name)
        if role is None:
            continue
        path = root / name
        if start_of(path, 2) == GZIP:
            path = unpacked_gzip(path, work / f"{role.prefix}-{role.split}-{role.kind}.idx", check)
        found.setdefault((role.prefix, role.split), {})[role.kind] = _idx(path, name)
    pairs = []
    for (prefix, split), kinds in sorted(found.items()):
        if "image" not in kinds or "label" not in kinds:
            raise refuse(
                f"{root} lacks the {'labels' if 'image' in kinds else 'pictures'} of {prefix or 'its'} {split}"
            )
        side = TRAIN if split == "train" else TEST
        pairs.append(Pair(kinds["image"], kinds["label"], side, transposed="emnist" in prefix and "q" not in prefix))
    return _source("IDX files", pairs)


def _idx(path: Path, name: str) -> Stored:
    with path.open("rb") as file:
        head = file.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in IDX_TYPES or not 1 <= head[3] <= 4:
            raise refuse(f"{name} does not begin like an IDX file")
        shape = tuple(int.from_bytes(file.read(4), "big") for _ in range(head[3]))
    dtype = IDX_TYPES[head[2]]
    count = int(dtype[-1])
    for side in shape:
        count *= side
    offset = 4 + 4 * head[3]
    if path.stat().st_size != offset + count:
        raise refuse(f"{name} has {path.stat().st_size:,} bytes, but its header says {offset + count:,}")
    return Stored(path=path, name=name, shape=shape, dtype=dtype, offset=offset)


def _starts_like_idx(path: Path) -> bool:
    try:
        head = start_of(path, 3)
    except OSError:
        return False
    return head[:2] == GZIP or (head[:2] == b"\0\0" and head[2:] != b"" and head[2] in IDX_TYPES)


def _role(name: str) -> tuple[int, bool] | None:
    """Return the side of an array and whether it holds pictures; None: the array is not read."""
    found = NAME.fullmatch(name.lower().strip("/"))
    if found is None:
        return None
    split = found["split"] or found["after"] or ""
    return SIDES.get(split[:2], ANY), found["kind"] in PICTURES


def _pairs(arrays: dict[str, Stored], where: str) -> list[Pair]:
    sides: dict[int, dict[bool, Stored]] = {}
    for name, array in arrays.items():
        role = _role(name)
        if role is not None:
            sides.setdefault(role[0], {})[role[1]] = array
    pairs = [Pair(kinds[True], kinds[False], side) for side, kinds in sorted(sides.items()) if len(kinds) == 2]
    if not pairs:
        raise refuse(
            f"{where} has no pictures with labels; name its arrays images and labels, or x_train, y_train, x_test and "
            "y_test"
        )
    return pairs


def _source(kind: str, pairs: list[Pair]) -> Source:
    shards: list[Shard] = []
    for pair in pairs:
        shards += _shards(pair)
    samples = sum(pair.images.shape[0] for pair in pairs)
    if not samples:
        raise refuse(f"{pairs[0].images.name} has no samples; save at least one of each class")
    check_samples(samples)
    return Source(kind=kind, shards=tuple(shards), samples=samples)


def _shards(pair: Pair) -> list[Shard]:
    images, labels = pair.images, pair.labels
    if not images.shape or not labels.shape or images.shape[0] != labels.shape[0]:
        raise refuse(
            f"{images.name} has the shape {list(images.shape)} and {labels.name} {list(labels.shape)}; "
            "give one label for each picture"
        )
    if math.prod(images.shape[1:]) > MAX_PIXELS:
        raise refuse(
            f"{images.name} has the shape {list(images.shape)}, but a picture may have at most {MAX_PIXELS:,} values"
        )
    if len(labels.shape) > 2 or labels.dtype[1] not in ("iufbSU" if len(labels.shape) == 1 else "iufb"):
        raise refuse(
            f"{labels.name} has the shape {list(labels.shape)} and the type {labels.dtype}; save one number or text "
            "for each picture, or a row of numbers of which one is 1"
        )
    for array in (images, labels):
        if 0 in array.shape[1:]:
            raise refuse(f"{array.name} has the shape {list(array.shape)}, with a side of 0; save it again")
    layout = "NWH" if pair.transposed else _layout(images)
    extra: dict[str, str | int | float | bool | list[str]] = {
        "labels": str(labels.path), "layout": layout, "scale": _scale(images), "array": images.name,
    }  # fmt: skip
    for role, array in (("images", images), ("labels", labels)):
        if array.offset is not None:
            extra |= {
                f"{role}_offset": array.offset, f"{role}_dtype": array.dtype,
                f"{role}_shape": "x".join(map(str, array.shape)),
            }  # fmt: skip
    size = int(images.dtype[-1])
    for side in images.shape[1:]:
        size *= side
    each = max(1, TASK // max(1, size))
    total = images.shape[0]
    return [
        Shard(kind="arrays", path=str(images.path), first=first, count=min(each, total - first), sides=(pair.side,),
              extra=extra)
        for first in range(0, total, each)
    ]  # fmt: skip


def _layout(images: Stored) -> str:
    """Return the order of the axes of pictures; raises `DatasetError`."""
    shape = images.shape
    if len(shape) == 3:
        return "NHW"
    if len(shape) == 4 and shape[3] in (1, 3):
        return "NHWC"
    if len(shape) == 4 and shape[1] in (1, 3):
        return "NCHW"
    if len(shape) == 2 and shape[1] > 1 and round(shape[1] ** 0.5) ** 2 == shape[1]:
        return "flat"
    raise refuse(
        f"{images.name} has the shape {list(shape)}, but pictures are [N, H, W], [N, H, W, 1 or 3], [N, 1 or 3, H, W] "
        "or [N, pixels of a square]"
    )


def _scale(images: Stored) -> float:
    """Return the factor that brings pixels to 0..255: 255 for those of 0..1."""
    import numpy as np

    if images.dtype[-2:] == "u1":
        return 1.0
    if images.dtype[1] not in "iufb":
        raise refuse(f"{images.name} holds {np.dtype(images.dtype)}, no numbers; save pixels as uint8")
    pixels = images.mapped()
    some = np.asarray(pixels[:: max(1, len(pixels) // LOOKED_AT)], dtype=np.float64)
    if not np.isfinite(some).all() or float(some.min(initial=0)) < 0:
        raise refuse(f"{images.name} has pixels below 0 or that are no numbers; save them as 0 to 255 or 0 to 1")
    return 255.0 if float(some.max(initial=0)) <= 1 else 1.0
