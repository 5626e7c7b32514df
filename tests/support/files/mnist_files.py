"""Folders with the real MNIST files, for tests that replace one of them."""

import gzip
from pathlib import Path
from typing import Final

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
