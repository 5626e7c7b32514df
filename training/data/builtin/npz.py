"""Keras' archive of MNIST, `mnist.npz`, read as the four IDX files it was made from; without numpy.

An archive is a zip file of .npy files: a header with type and shape as a Python literal, then the values in C order.
See numpy.lib.format. The checksums of the IDX files decide what it holds.
"""

import ast
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Final

from preflight.errors import DatasetError
from training.data.builtin.idx import MAX_BYTES, MAX_DIMENSIONS, Idx, damaged
from training.data.builtin.names import Role

SUFFIX: Final = ".npz"
MEMBERS: Final = {
    ("train", "image"): "x_train.npy", ("train", "label"): "y_train.npy",
    ("test", "image"): "x_test.npy", ("test", "label"): "y_test.npy",
}  # fmt: skip
"""Names in the archive by split and kind."""
BYTES: Final = {"|u1": 1, "|i1": 1, "<u2": 2, "<i2": 2, "<u4": 4, "<i4": 4, "<u8": 8, "<i8": 8}
"""Types whose values, where they are bytes, lie in the first byte of each; labels are saved as any of them."""
MAX_HEADER: Final = 4096


def is_archive(path: Path) -> bool:
    """Whether a file is a zip file with the members of Keras' archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return set(MEMBERS.values()) <= set(archive.namelist())
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return False


def read(path: Path, role: Role) -> Idx:
    """Return an array of the archive as the IDX file that it was made from.

    Raises:
        DatasetError: the file cannot be read, or the array is not one of bytes.
    """
    name = MEMBERS[role.split, role.kind]
    try:
        with zipfile.ZipFile(path) as archive, archive.open(name) as member:
            return _read_array(path, name, member)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror}); make it readable", field=str(path)) from error
    except (KeyError, ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise damaged(path, f"it is not a whole archive of numpy ({error})") from error


def _read_array(path: Path, name: str, member: IO[bytes]) -> Idx:
    magic = member.read(8)
    size = struct.calcsize("<H" if magic[6:7] == b"\1" else "<I")
    length = int.from_bytes(member.read(size), "little")
    if magic[:6] != b"\x93NUMPY" or length > MAX_HEADER:
        raise damaged(path, f"{name} in it is no array")
    match ast.literal_eval(member.read(length).decode("latin-1")):
        case {"descr": str(kind), "fortran_order": False, "shape": tuple(shape)} if kind in BYTES:
            width = BYTES[kind]
        case _:
            raise damaged(path, f"{name} in it is no array of bytes in C order")
    if not 1 <= len(shape) <= MAX_DIMENSIONS or not all(isinstance(side, int) and 0 < side < 1 << 32 for side in shape):
        raise damaged(path, f"{name} in it has an unusable shape")
    promised = math.prod(shape) * width
    if promised > MAX_BYTES:
        raise damaged(path, f"{name} in it has {promised:,} bytes")
    body = member.read(promised + 1)
    if len(body) != promised:
        raise damaged(path, f"{name} in it is not as long as its header says")
    head = bytes([0, 0, 0x08, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return Idx(head, body[::width] if width > 1 else body, "u1", tuple(shape))
