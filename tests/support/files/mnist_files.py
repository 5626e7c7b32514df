"""Folders with the real MNIST files, for tests that replace one of them; and IDX files that are made."""

import gzip
import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from training.data.builtin.idx import TYPES

FILES: Final = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip


def link_mnist(mnist_dir: Path, folder: Path) -> Path:
    """Return a folder in which each MNIST file is a link to the real one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (folder / f"{name}.gz").symlink_to(mnist_dir / f"{name}.gz")
    return folder


def unpack(folder: Path, name: str) -> Path:
    """Put the raw file in the place of a compressed one."""
    raw, packed = folder / name, folder / f"{name}.gz"
    raw.write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    return raw


def idx_bytes(array: npt.NDArray[np.generic]) -> bytes:
    """Return the content of an IDX file."""
    stored = array.dtype.newbyteorder(">")
    code = next(code for code, name in TYPES.items() if np.dtype(name) == stored)
    return struct.pack(f">4B{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.astype(stored).tobytes()
