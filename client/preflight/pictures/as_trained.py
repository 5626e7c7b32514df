"""Pictures that are training images already: of their size, light on dark, centred; they stay as they are.

Reading a drawing from a photograph takes several times as long as the network, and changes such images a little.
"""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

HEADER: Final = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
GREY: Final = b"\x08\x00"
"""Bit depth and colour type in the header of a PNG with 8 bits of grey (ISO/IEC 15948, 11.2.2)."""
LEAST_INK: Final = 128
"""Least value of the brightest pixel, of 255."""
OFF_CENTRE: Final = 1.0
"""Pixels that the centre of mass may lie off the middle: images of MNIST are placed by whole pixels."""


def read_as_trained(data: bytes, height: int, width: int, filled: float) -> npt.NDArray[np.uint8] | None:
    """Return the pixels of a PNG, uint8 [height, width], if it is like a training image; None: read the drawing in it.

    Args:
        data: the file.
        height: of training images.
        width: of training images.
        filled: share of the side that a drawing fills in them; see `ModelInput`.
    """
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    if not data.startswith(HEADER + size + GREY):
        return None
    import numpy as np
    from PIL.PngImagePlugin import PngImageFile

    try:
        with PngImageFile(BytesIO(data)) as picture:
            picture.load()
            if picture.mode != "L" or picture.info.keys() & {"transparency", "exif"} or picture.n_frames > 1:
                return None
            box = picture.getbbox()
            pixels = np.frombuffer(picture.tobytes(), np.uint8)
    except Exception:
        return None
    if box is None or pixels.max() < LEAST_INK:
        return None
    left, top, right, bottom = box
    if left == 0 or top == 0 or right == width or bottom == height:
        return None
    if abs(max(right - left, bottom - top) - filled * min(height, width)) > 1:
        return None
    mass, down, across = pixels.astype(np.float32) @ _moments(height, width)
    is_centred = max(abs(down), abs(across)) <= OFF_CENTRE * mass
    return pixels.reshape(height, width) if is_centred else None


@lru_cache(maxsize=8)
def _moments(height: int, width: int) -> npt.NDArray[np.float32]:
    """Return the factors of pixels for their sum and its moments about the middle, float32 [pixels, 3]."""
    import numpy as np

    down, across = np.mgrid[:height, :width].astype(np.float32)
    moments = (np.ones_like(down), down - (height - 1) / 2, across - (width - 1) / 2)
    return np.stack([each.ravel() for each in moments], 1)
