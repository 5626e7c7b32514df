"""Rows: the facts of a decoded picture that find its duplicates and its side of the split, next to its pixels.

The perceptual hash is a SimHash (Charikar, "Similarity Estimation Techniques from Rounding Algorithms", STOC 2002) of
an 8x8 thumbnail: signs of random projections, in `TABLES` words of `BITS` bits. Pictures that share a word may be near
duplicates; their thumbnails and pixels decide.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

THUMB: Final = 8
TABLES: Final = 8
BITS: Final = 24
MODES: Final = ("other", "L", "RGB", "RGBA", "P", "1", "LA", "CMYK", "I;16", "I;16B", "I", "YCbCr", "PA", "La", "HSV")
"""Pillow's names of modes; a row has a number in this list."""
ROW: Final = np.dtype(
    [
        ("item", "<u4"), ("label", "<u2"), ("side", "u1"), ("mode", "u1"), ("height", "<u4"), ("width", "<u4"),
        ("constant", "?"), ("group", "<u8"), ("content", "<u8", (2,)), ("hash", "<u4", (TABLES,)),
        ("thumb", "u1", (THUMB * THUMB,)), ("total", "<u8"), ("squares", "<u8"), ("source", "<u8", (2,)),
    ]
)  # fmt: skip
"""`item`: number within the task; `content`: 128 bits of BLAKE2 of the pixels; `group`: 64 bits of its group's name, 0
for none; `total`, `squares`: sums of the pixels, 0..255, and of their squares; `source`: 128 bits of path, size and
time of its file, or 0."""

BLOCK: Final = 1 << 17
"""Pixels that are described at a time: what is computed of them stays in caches, which is twice as fast."""

Images = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Decoded pictures uint8 [N, C, H, W] of one form, and their rows [N] of `ROW`."""

    images: Images
    rows: Rows


def describe(images: Images, rows: Rows) -> Batch:
    """Fill in the fields that follow from the pixels: hashes, thumbnails, sums."""
    step = max(1, BLOCK // images[0].size)
    for start in range(0, len(images), step):
        _describe(images[start : start + step], rows[start : start + step])
    return Batch(images, rows)


def _describe(images: Images, rows: Rows) -> None:
    flat = images.reshape(len(images), -1)
    digests = b"".join(hashlib.blake2b(row.data, digest_size=16).digest() for row in flat)
    rows["content"] = np.frombuffer(digests, "<u8").reshape(-1, 2)
    rows["constant"] = (flat == flat[:, :1]).all(1)
    wide = flat.astype(np.uint32)
    rows["total"] = wide.sum(1)
    rows["squares"] = np.einsum("ij,ij->i", wide, wide, dtype=np.uint64)
    thumbs = _thumbnails(images)
    rows["thumb"] = thumbs.astype(np.uint8)
    signs = (thumbs - thumbs.mean(1, keepdims=True)) @ _projections() > 0
    weights = (1 << np.arange(BITS, dtype=np.uint32))[None, None]
    rows["hash"] = (signs.reshape(len(images), TABLES, BITS) * weights).sum(2, dtype=np.uint32)


def save_array(path: Path, array: npt.NDArray[np.generic]) -> None:
    """Write an array as `.npy`; raises `OSError` with its number, which NumPy's own writing loses on a full disk."""
    flat = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(flat))
        file.write(flat.reshape(-1).view(np.uint8).data)


def text_hash(text: str) -> int:
    """Return 64 bits of BLAKE2 of a text, never 0."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") or 1


def source_key(path: str, size: int, mtime_ns: int) -> bytes:
    """Return 16 bytes for the state of a source file."""
    return hashlib.blake2b(f"{path}\0{size}\0{mtime_ns}".encode(errors="surrogateescape"), digest_size=16).digest()


def _thumbnails(images: Images) -> npt.NDArray[np.float32]:
    """Return the mean brightness of each of 8x8 parts, float32 [N, 64]."""
    _, channels, height, width = images.shape
    grey = images[:, 0].astype(np.float32) if channels == 1 else images.mean(1, dtype=np.float32)
    parts = _averaging(height) @ grey @ _averaging(width).T
    thumbs: npt.NDArray[np.float32] = parts.reshape(len(images), THUMB * THUMB)
    return thumbs


@lru_cache(maxsize=4)
def _averaging(side: int) -> npt.NDArray[np.float32]:
    """Return the matrix [8, side] that averages eight equal parts of `side` pixels, border pixels by their share."""
    edges = np.linspace(0, side, THUMB + 1)
    pixels = np.arange(side)
    shares = np.minimum(pixels[None] + 1, edges[1:, None]) - np.maximum(pixels[None], edges[:-1, None])
    weights: npt.NDArray[np.float32] = (np.clip(shares, 0, 1) * (THUMB / side)).astype(np.float32)
    return weights


@lru_cache(maxsize=1)
def _projections() -> npt.NDArray[np.float32]:
    drawn: npt.NDArray[np.float32] = np.random.default_rng(52).standard_normal(
        (THUMB * THUMB, TABLES * BITS), dtype=np.float32
    )
    return drawn
