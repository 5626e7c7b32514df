"""The IDX format of MNIST and its relatives: raw or gzipped, read whole and checked before it is believed.

Whether a file is gzipped is seen from its first bytes: browsers and proxies unpack files and leave the name as it was.

A file is two zero bytes, a type code, the number of dimensions, each dimension as a big-endian uint32, then
the values in C order, big-endian. See http://yann.lecun.com/exdb/mnist (section "the IDX file format").

Reading needs only the standard library; numpy is imported when the values are asked for as an array.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from preflight.errors import DatasetError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

TYPES: Final = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""Type code -> numpy's name of the type; the digit is the size in bytes."""

MAX_DIMENSIONS: Final = 4
MAX_BYTES: Final = 1 << 30
"""Largest body that is read, bytes: five times that of the largest built-in file (EMNIST digits, 188 MB)."""

GZIP: Final = b"\x1f\x8b"
OTHERS: Final = (
    (b"", "is empty"), (b"<!doctype html", "is a web page"), (b"<html", "is a web page"),
    (b"<?xml", "is an XML document, such as the error of a store"), (b"{", "is a JSON document"),
    (b"version https://git-lfs", "is a pointer of Git LFS; `git lfs pull` fetches the file"),
    (b"pk\x03\x04", "is a zip archive"), (b"7z\xbc\xaf", "is a 7z archive"), (b"\x93numpy", "is an array of numpy"),
    (b"bzh", "is a bzip2 file"), (b"\xfd7zxz", "is an xz file"), (b"par1", "is a Parquet file"),
)  # fmt: skip
"""Kinds of other files by their beginning in small letters; the first is the whole file."""
PEEKED: Final = 64

DEFLATE_RATIO: Final = 1032
"""Most bytes that deflate can expand one byte to, so a gzipped file of known size bounds its content."""


@dataclass(frozen=True, slots=True)
class Idx:
    """A whole, well-formed IDX file."""

    head: bytes
    body: bytes
    dtype: str
    """Numpy's name of the stored type: one of `TYPES`."""
    shape: tuple[int, ...]

    @property
    def md5(self) -> str:
        """MD5 of the uncompressed file, in hex."""
        digest = hashlib.md5(self.head, usedforsecurity=False)
        digest.update(self.body)
        return digest.hexdigest()

    def array(self) -> npt.NDArray[np.generic]:
        """Return the values in native byte order, shaped `shape`; bytes are not copied and stay read-only."""
        import numpy as np

        stored = np.dtype(self.dtype)
        values = np.frombuffer(self.body, dtype=stored).reshape(self.shape)
        return values.astype(stored.newbyteorder("="), copy=False)


def damaged(path: Path, what: str) -> DatasetError:
    """Return the error for a file that cannot be used because of `what`."""
    advice = "delete it so that it is fetched again, or replace it"
    return DatasetError(f"{path} is damaged: {what}; {advice}", field=str(path))


def peek(path: Path) -> str | None:
    """Return a description of a file that does not begin like an IDX file, raw or gzipped; None: it does.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        begin = file.read(PEEKED)
    if begin.startswith(GZIP):
        try:
            with gzip.open(path) as packed:
                begin = packed.read(PEEKED)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            return f"is not a whole gzip file ({_decapitalized(error)})"
    if begin[:2] == b"\0\0" and begin[2:3] and begin[2] in TYPES:
        return None
    return _other(begin) or f"begins with 0x{begin[:4].hex()}, not with the magic number of an IDX file"


def _other(begin: bytes) -> str | None:
    """Return the kind of a file with this beginning; None: it is unknown."""
    low = begin.lstrip(b"\xef\xbb\xbf \r\n\t").lower()
    return next((what for sign, what in OTHERS if (low.startswith(sign) if sign else not begin)), None)


def read(path: Path) -> Idx:
    """Read and check the IDX file at `path`, raw or gzipped.

    Nothing is allocated for a header that the file's size contradicts, and a gzipped file is never expanded
    by more than a byte beyond what its header promises.

    Raises:
        DatasetError: the file cannot be read, or is not exactly one IDX file.
    """
    try:
        packed = is_gzip(path)
        with gzip.open(path) if packed else path.open("rb") as file:
            head, dtype, shape = _read_head(path, file)
            promised = math.prod(shape) * int(dtype[-1])
            _check_promise(path, promised, packed=packed)
            body = file.read(promised + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"it is not a whole gzip file ({_decapitalized(error)})") from error
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be read ({error.strerror}); make it readable or replace it", field=str(path)
        ) from error
    if len(body) != promised:
        more_or_less = "more" if len(body) > promised else f"only {len(body):,}"
        raise damaged(path, f"its header promises {promised:,} bytes and {more_or_less} follow")
    return Idx(head, body, dtype, shape)


def is_gzip(path: Path) -> bool:
    """Whether a file begins as gzip's do; raises `OSError`."""
    with path.open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def _read_head(path: Path, file: BinaryIO | gzip.GzipFile) -> tuple[bytes, str, tuple[int, ...]]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES:
        what = _other(magic + file.read(PEEKED)) or f"begins with 0x{magic.hex()}"
        raise damaged(path, f"it {what}, not an IDX file, which begins with a magic number")
    count = magic[3]
    if not 1 <= count <= MAX_DIMENSIONS:
        raise damaged(path, f"it has {count} dimensions, not 1 to {MAX_DIMENSIONS}")
    sizes = file.read(4 * count)
    if len(sizes) < 4 * count:
        raise damaged(path, "it ends within its header")
    shape: tuple[int, ...] = struct.unpack(f">{count}I", sizes)
    if 0 in shape:
        raise damaged(path, "one of its dimensions is 0")
    return magic + sizes, TYPES[magic[2]], shape


def _check_promise(path: Path, promised: int, *, packed: bool) -> None:
    """Raise unless a file of this size can hold `promised` bytes."""
    stored = path.stat().st_size
    holds = stored * DEFLATE_RATIO if packed else stored
    if promised > min(holds, MAX_BYTES):
        raise damaged(path, f"its header promises {promised:,} bytes, which its {stored:,} cannot hold")


def _decapitalized(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]
