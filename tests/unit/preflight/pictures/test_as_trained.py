"""Pictures that are like training images stay as they are; all others are read as drawings."""

from io import BytesIO

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from preflight.pictures.as_trained import read_as_trained


def png(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def digit(top: int = 4, left: int = 9, height: int = 20, width: int = 10) -> npt.NDArray[np.uint8]:
    """Return a bar of ink, as large as a digit of MNIST unless it is changed."""
    pixels = np.zeros((28, 28), np.uint8)
    pixels[top : top + height, left : left + width] = 255
    return pixels


def read(data: bytes) -> npt.NDArray[np.uint8] | None:
    return read_as_trained(data, 28, 28, 20 / 28)


def test_a_training_image_stays_as_it_is() -> None:
    for pixels in (digit(), digit(top=3), digit(height=21), digit(left=8)):
        found = read(png(Image.fromarray(pixels)))
        assert found is not None
        assert np.array_equal(found, pixels)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((28, 28), np.uint8), np.full((28, 28), 255, np.uint8), 255 - digit(), digit(top=0),
        digit(top=8, height=20), digit(left=3), digit(height=12), digit() // 3, digit()[:20],
        np.zeros((28, 28), np.uint16),
    ],
)  # fmt: skip
def test_any_other_image_is_read_as_a_drawing(pixels: npt.NDArray[np.uint8]) -> None:
    """Empty, dark on light, at an edge, off the middle, small, pale, of another size or depth."""
    assert read(png(Image.fromarray(pixels))) is None


def test_other_files_are_left_to_the_other_way() -> None:
    whole = png(Image.fromarray(digit()))
    for data in (b"", b"\x89PNG", whole[:-30], whole[:40] + b"\xff" * 20 + whole[60:]):
        assert read(data) is None
    assert read(png(Image.fromarray(digit()).convert("RGB"))) is None
    file = BytesIO()
    Image.fromarray(digit()).save(file, "PNG", transparency=0)
    assert read(file.getvalue()) is None
