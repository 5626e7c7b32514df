"""MD5s of the published files, as torchvision lists them.

MNIST is often found recompressed, so the MD5s of its uncompressed files decide; nobody publishes those of the others.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Md5:
    """Checksums of one published file, where they are known."""

    gz: str | None = None
    raw: str | None = None
    """MD5 of the uncompressed file."""


MD5S: Final[Mapping[str, tuple[Md5, Md5, Md5, Md5]]] = {
    "mnist": (
        Md5("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        Md5("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        Md5("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        Md5("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
    ),
    "fashion-mnist": (
        Md5("8d4fb7e6c68d591d4c3dfef9ec88bf0d"), Md5("bef4ecab320f06d8554ea6380940ec79"),
        Md5("25c81989df183df01b3e8a0aad5dffbe"), Md5("bb300cfdad3c16e7a12a480ee83cd310"),
    ),
    "kmnist": (
        Md5("bdb82020997e1d708af4cf47b453dcf7"), Md5("5c965bf0a639b31b8f53240b1b52f4d7"),
        Md5("e144d726b3acfaa3e44228e80efcd344"), Md5("7320c461ea6c1c855c0b718fb2a4b134"),
    ),
    # Published as one zip of gzipped files, whose MD5 torchvision checks.
    "emnist": (Md5(), Md5(), Md5(), Md5()),
    "qmnist": (
        Md5("ed72d4157d28c017586c42bc6afe6370"), Md5("1394631089c404de565df7b7aeaf9412"),
        Md5("0058f8dd561b90ffdd0f734c6a30e5e4"), Md5("5b5b05890a5e13444e108efe57b788aa"),
    ),
}  # fmt: skip
"""Name of a data set -> its training images, test images, training labels and test labels."""


def published_by(digests: set[str]) -> str | None:
    """Return the built-in data set that a file with one of these MD5s belongs to, if any."""
    return next((name for name, files in MD5S.items() if any(digests & {md5.raw, md5.gz} for md5 in files)), None)


def file_md5(path: Path) -> str:
    """Return the MD5 of the file at `path`, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
