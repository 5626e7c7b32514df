"""Pictures of any kind become what MNIST would have made of them; what is none is refused with one sentence."""

import base64
import os
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from preflight.errors import InvalidConfig
from preflight.pictures.reading import FORMATS, measure_fill, read_colour_picture, read_drawing

Save = Callable[[Image.Image, Path], None]


def drawn() -> Image.Image:
    """Return an L of ink, 255 on 0, far from the middle of a large picture."""
    pixels = np.zeros((300, 500), dtype=np.uint8)
    pixels[40:200, 350:380] = pixels[170:200, 350:450] = 255
    return Image.fromarray(pixels)


def inverted(image: Image.Image) -> Image.Image:
    return Image.fromarray(255 - np.asarray(image))


def with_alpha(image: Image.Image) -> Image.Image:
    painted = Image.new("RGBA", image.size, (10, 20, 120, 0))
    painted.putalpha(image)
    return painted


def faint(image: Image.Image) -> Image.Image:
    """Return grey ink on grey paper."""
    return Image.fromarray((200 - np.asarray(image) // 4).astype(np.uint8))


KINDS: dict[str, tuple[str, Callable[[Image.Image], Image.Image]]] = {
    "white on black": ("png", lambda image: image),
    "black on white": ("png", inverted),
    "colours": ("png", lambda image: inverted(image).convert("RGB")),
    "transparent": ("png", with_alpha),
    "palette": ("png", lambda image: inverted(image).convert("P")),
    "one bit": ("png", lambda image: inverted(image).convert("1")),
    "sixteen bits": ("png", lambda image: Image.fromarray(np.asarray(image).astype(np.uint16) * 257)),
    "faint": ("png", faint),
    "CMYK": ("jpg", lambda image: inverted(image).convert("CMYK")),
    "photo": ("jpg", lambda image: faint(image).convert("RGB")),
    "large": ("png", lambda image: image.resize((4000, 2400))),
}


def read(path: Path) -> npt.NDArray[np.int64]:
    (image,) = read_drawing(path, 28, 28, 20 / 28).image.astype(np.int64)
    found: npt.NDArray[np.int64] = image
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_picture_becomes_the_same(tmp_path: Path, kind: str) -> None:
    """20 pixels high, the middle of its mass in the middle, white on black."""
    suffix, convert = KINDS[kind]
    path = tmp_path / f"picture.{suffix}"
    drawn().save(tmp_path / "plain.png")
    convert(drawn()).save(path)
    image, plain = read(path), read(tmp_path / "plain.png")
    assert image.max() == 255
    assert image[0].max() == 0
    rows = np.flatnonzero(image.max(1) > 60)
    assert rows[-1] - rows[0] + 1 in (19, 20, 21)
    for axis in (0, 1):
        assert image.sum(1 - axis) @ (np.arange(28) + 0.5) / image.sum() == pytest.approx(14, abs=0.7)
    assert np.abs(image - plain).mean() < 8


def test_how_much_is_filled_is_measured() -> None:
    """The longer side of what is drawn, in the median; faint pixels are paper, and without any ink it is all of it."""
    images = np.zeros((5, 1, 28, 28), dtype=np.uint8)
    images[:4, 0, 4:24, 10:15] = 255
    images[3, 0, 14, 2:27] = 255
    images[0, 0, 0] = 20
    assert measure_fill(images) == 20 / 28
    assert measure_fill(np.zeros((2, 3, 8, 9), dtype=np.uint8)) == 1.0
    assert measure_fill(np.full((2, 1, 8, 90), 255, dtype=np.uint8)) == 1.0


def png(width: int, height: int) -> bytes:

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def animated(path: Path) -> None:
    first, *others = (Image.new("L", (20, 20), shade) for shade in (0, 100, 200))
    first.save(path, save_all=True, append_images=others)


def specks(path: Path) -> None:
    pixels = np.full((1900, 1900), 255, dtype=np.uint8)
    pixels[10, 10] = pixels[1880, 1880] = 0
    Image.fromarray(pixels).save(path)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 200 << 20)


def strip(path: Path) -> None:
    """A line of 30,000 pixels, half of them black."""
    pixels = np.full((1, 30_000), 255, dtype=np.uint8)
    pixels[0, 15_000:] = 0
    Image.fromarray(pixels).save(path)


def heic(path: Path) -> None:
    """The beginning of what an iPhone saves."""
    path.write_bytes(b"\0\0\0\x24ftypheic\0\0\0\0mif1MiHEMiPrmiafMiHBheic" + bytes(500))


def on_a_grid(path: Path) -> None:
    """Squared paper, nothing drawn on it."""
    pixels = np.full((400, 300), 220, dtype=np.uint8)
    pixels[::20] = pixels[:, ::20] = 120
    Image.fromarray(pixels).save(path)


def badly_tagged(path: Path) -> None:
    """A JPEG that is to be turned, and whose EXIF has a width that is no whole number: Pillow raises struct.error."""
    tags = struct.pack("<HHIf", 0x0100, 11, 1, 1.5) + struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + tags + struct.pack("<I", 0)
    drawn().save(path, "JPEG", exif=exif)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda _: None, "cannot be read (No such file"),
    "empty": (lambda path: path.touch(), "is empty"),
    "text": (lambda path: path.write_text("hello"), f"is no picture in {' or '.join(FORMATS)}"),
    "gif": (lambda path: Image.new("L", (9, 9)).save(path, "GIF"), "is no picture in"),
    "twenty thousand a side": (lambda path: path.write_bytes(png(20_000, 20_000)), "has 20,000 x 20,000 pixels"),
    "cut short": (lambda path: path.write_bytes(png(200, 200)), "is damaged"),
    "badly tagged": (badly_tagged, "is damaged (required argument is not an integer); save it again"),
    "animated": (animated, "is animated, 3 pictures in one"),
    "uniform": (lambda path: Image.new("RGB", (50, 50), "white").save(path), "shows nothing"),
    "specks": (specks, "shows only specks"),
    "one pixel": (lambda path: Image.new("L", (1, 1)).save(path), "shows nothing"),
    "wholly transparent": (lambda path: Image.new("RGBA", (50, 50)).save(path), "shows nothing"),
    "pipe": (lambda path: os.mkfifo(path), "is not a regular file"),
    "directory": (lambda path: path.mkdir(), "is not a regular file"),
    "200 MiB": (huge, "is larger than 64 MiB"),
    "HEIC": (heic, "is no picture in PNG or JPEG; convert it"),
    "squared paper": (on_a_grid, "is uneven paper"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_picture_is_refused(tmp_path: Path, kind: str) -> None:
    """With one sentence that names it, before it is decoded where its header says enough."""
    make, words = BAD[kind]
    path = tmp_path / "bad.png"
    make(path)
    with pytest.raises(InvalidConfig) as caught:
        read(path)
    assert str(path) in caught.value.message
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def spoiled(data: bytes, edits: list[tuple[int, bytes]]) -> bytes:
    """Return a file with some of its bytes overwritten, and a PNG's checksums made right again."""
    changed = bytearray(data)
    for place, new in edits:
        changed[place % len(changed) : place % len(changed) + len(new)] = new
    if not changed.startswith(b"\x89PNG\r\n\x1a\n"):
        return bytes(changed)
    whole, at = bytes(changed[:8]), 8
    while at + 12 <= len(changed):
        (size,) = struct.unpack(">I", changed[at : at + 4])
        body = bytes(changed[at + 4 : at + 8 + size])
        whole += changed[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + size
    return whole


def as_file(kind: str, tagged: bool) -> bytes:
    """Return a small picture as a file; `tagged`: its EXIF says that it is to be turned."""
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a description"
    file = BytesIO()
    drawn().reduce(4).save(file, kind, exif=exif if tagged else b"")
    return file.getvalue()


FILES = [as_file(kind, tagged) for kind in FORMATS for tagged in (False, True)]


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of damaged EXIF
@given(
    data=st.sampled_from(FILES),
    edits=st.lists(st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=8)), min_size=1, max_size=5),
)
def test_a_damaged_picture_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, edits: list[tuple[int, bytes]]
) -> None:
    """Whatever stands in its headers, no other error than a refusal comes of it."""
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(spoiled(data, edits))
    try:
        assert read(path).shape == (28, 28)
    except InvalidConfig as error:
        assert "\n" not in error.message


def test_a_picture_in_colour_is_fitted_in(tmp_path: Path) -> None:
    """Scaled without distortion, in the middle of black, as it is lit; whatever kind of file it is."""
    path = tmp_path / "picture.png"
    Image.new("RGB", (400, 200), (250, 120, 10)).save(path)
    found = read_colour_picture(path, 32, 32)
    assert found.shape == (3, 32, 32)
    assert found.dtype == np.uint8
    assert found[:, 8:24].reshape(3, -1).T.tolist() == [[250, 120, 10]] * 512
    assert not found[:, :8].any()
    assert not found[:, 24:].any()
    wide = read_colour_picture(path, 20, 64)
    assert wide[:, :, 12:52].min() > 0
    assert not wide[:, :, :12].any()
    Image.new("L", (10, 10), 77).save(path)
    assert (read_colour_picture(path, 32, 32) == 77).all()  # of one colour throughout, and no error
    Image.new("RGBA", (10, 10), (0, 0, 0, 0)).save(path)
    assert (read_colour_picture(path, 32, 32) == 255).all()


def test_a_picture_of_the_models_size_stays_as_it_is(tmp_path: Path) -> None:
    """To the last bit."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    assert (read_colour_picture(tmp_path / "picture.png", 24, 40) == pixels.transpose(2, 0, 1)).all()


def test_what_is_no_picture_is_refused_in_colour_too(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"no picture")
    with pytest.raises(InvalidConfig, match="is no picture in PNG or JPEG"):
        read_colour_picture(path, 32, 32)


def test_a_picture_of_one_row_is_read(tmp_path: Path) -> None:
    """Its ink is a line as thin as an image has them."""
    strip(tmp_path / "strip.png")
    assert read(tmp_path / "strip.png").any(1).sum() == 1
    assert read_colour_picture(tmp_path / "strip.png", 28, 28).shape == (3, 28, 28)


def test_what_was_read_is_described(tmp_path: Path) -> None:
    """The image as a PNG, the ink's polarity, its box in the pixels of the picture, and how even the paper is."""
    path = tmp_path / "picture.png"
    drawn().resize((3000, 1800)).save(path)
    found = read_drawing(path, 28, 28, 20 / 28)
    described = found.described()
    assert (described["ink"], described["uneven"], described["background_spread"]) == ("light", False, 0.0)
    assert np.abs(np.array(described["box"]) - (2100, 240, 2700, 1200)).max() < 12
    seen = Image.open(BytesIO(base64.b64decode(str(described["image"]))))
    assert (np.asarray(seen) == found.image[0]).all()


def test_a_picture_of_mnists_form_stays_as_it_is(tmp_path: Path) -> None:
    """To the last bit, dark on light too; one whose drawing lies elsewhere is centred."""
    path, pixels = tmp_path / "digit.png", np.zeros((28, 28), dtype=np.uint8)
    pixels[4:24, 12:16] = np.random.default_rng(0).integers(100, 256, (20, 4))
    for shown in (pixels, 255 - pixels):
        Image.fromarray(shown).save(path)
        assert (read(path) == pixels).all()
    Image.fromarray(np.roll(pixels, 6, axis=1)).save(path)
    assert np.abs(read(path) - pixels).mean() < 10
