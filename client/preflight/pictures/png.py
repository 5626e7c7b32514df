"""PNG files of small images, written without Pillow."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_SIDE: Final = 64
"""Most pixels of a side; of a larger image every second, third, ... is kept: twelve in colour take 150 KB at most."""


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Return an image [C, H, W] as a PNG file (W3C PNG, 3rd edition): in colour with three channels, else the first.

    PIL would cost its import before the job's result.
    """
    stride = -(-max(pixels.shape[1:]) // MAX_SIDE)
    shown = (pixels if len(pixels) == 3 else pixels[:1])[:, ::stride, ::stride].transpose(1, 2, 0)
    height, width, channels = shown.shape
    rows = b"".join(b"\0" + row.tobytes() for row in shown)  # filter type 0: as they are
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
