"""One picture: from the bytes of an untrusted file to uint8 pixels of the data set's form."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from preflight.pictures.form import MAX_PIXELS, Form

Image.MAX_IMAGE_PIXELS = None  # the bound here is lower, and its sentence says so

Images = npt.NDArray[np.uint8]
MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "PNG"), (b"\xff\xd8\xff", "JPEG"), (b"GIF8", "GIF"), (b"BM", "BMP"), (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"), (b"P1", "PPM"), (b"P2", "PPM"), (b"P3", "PPM"), (b"P4", "PPM"), (b"P5", "PPM"), (b"P6", "PPM"),
)  # fmt: skip
"""First bytes of the files that are read, and Pillow's name of their format."""
HEIF: Final = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
LONGEST_CAUSE: Final = 120
"""Most characters of Pillow's message about a damaged file."""
ORIENTATION: Final = 0x0112
"""EXIF's tag of the orientation."""
BORDER: Final = 32
"""Levels around the median of a border within which it counts as plain paper."""


class Unusable(Exception):
    """A sample that is left out; the message says why."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Properties of a picture, from which the form of a data set is chosen."""

    height: int
    width: int
    colour: bool
    paper: int
    """Median of the border where that is plain; -1 where it is not."""


def decode(data: bytes, form: Form, most_pixels: int = MAX_PIXELS) -> tuple[Images, str, int, int]:
    """Return pixels uint8 [C, H, W] of the form, and the picture's own mode, height and width; raises `Unusable`."""
    picture = _opened(data, most_pixels)
    try:
        mode, (width, height) = picture.mode, picture.size
        is_plain = mode == "L" and "transparency" not in picture.info
        if is_plain and form.channels == 1 and (height, width) == (form.height, form.width):
            pixels = np.frombuffer(picture.tobytes(), np.uint8).reshape(1, height, width)
            if "exif" not in picture.info:  # of a PNG known only now
                return (255 - pixels if form.invert else pixels), mode, height, width
        if picture.format == "JPEG" and min(width / form.width, height / form.height) > 2:
            picture.draft("L" if form.channels == 1 else "RGB", (2 * form.width, 2 * form.height))
        return fit(_plain(picture, form.channels), form), mode, height, width
    except Unusable:
        raise
    except MemoryError as error:
        raise Unusable("needs more memory than a decoding process may have; make it smaller") from error
    except Exception as error:  # Pillow's parsers let through whatever their parts raise, e.g. struct.error
        raise Unusable(f"is damaged ({cause(error)})") from error


def probe(data: bytes) -> Probe:
    """Return size, colour and paper of a picture; raises `Unusable`."""
    picture = _opened(data)
    width, height = picture.size
    try:
        if picture.format == "JPEG":
            picture.draft("RGB", (128, 128))
        small = _plain(picture, 3)
        if max(small.size) > 256:
            small = small.reduce(max(small.size) // 128)
        pixels = np.asarray(small)
    except Unusable:
        raise
    except Exception as error:
        raise Unusable(f"is damaged ({cause(error)})") from error
    return probe_pixels(pixels, height, width)


def probe_pixels(pixels: Images, height: int, width: int) -> Probe:
    """Return size, colour and paper by the pixels uint8 [H, W, 3] of a picture of `height` and `width`."""
    grey = pixels.mean(2)
    border = np.concatenate((grey[0], grey[-1], grey[:, 0], grey[:, -1]))
    middle = float(np.median(border))
    plain = float((abs(border - middle) < BORDER).mean()) >= 0.9
    spread = pixels.max(2).astype(np.int16) - pixels.min(2)
    return Probe(height, width, bool(spread.mean() > 2), round(middle) if plain else -1)


def fit(picture: Image.Image, form: Form) -> Images:
    """Return a picture in mode L or RGB as [C, H, W] of the form: scaled without distortion, antialiased, centred."""
    scale = min(form.width / picture.width, form.height / picture.height)
    size = (
        min(form.width, max(1, round(picture.width * scale))), min(form.height, max(1, round(picture.height * scale)))
    )  # fmt: skip
    if size != picture.size:
        filter_ = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
        picture = picture.resize(size, filter_, reducing_gap=3.0)
    pixels = np.asarray(picture)
    pixels = 255 - pixels if form.invert else pixels
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    if size == (form.width, form.height):
        return np.ascontiguousarray(pixels)
    canvas = np.zeros((form.channels, form.height, form.width), np.uint8)
    top, left = (form.height - size[1]) // 2, (form.width - size[0]) // 2
    canvas[:, top : top + size[1], left : left + size[0]] = pixels
    return canvas


def cause(error: Exception) -> str:
    """Return the first words of a parser's message."""
    return " ".join(str(error).split())[:LONGEST_CAUSE] or type(error).__name__


def _opened(data: bytes, most_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return the picture in `data`, of which only the header was read; raises `Unusable`."""
    kind = next((name for magic, name in MAGIC if data.startswith(magic)), None)
    if kind is None and data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        kind = "WEBP"
    if kind is None:
        raise Unusable(_foreign(data))
    try:
        picture = Image.open(BytesIO(data), formats=(kind,))
    except Exception as error:
        raise Unusable(f"is damaged ({cause(error)})") from error
    width, height = picture.size
    if width * height > most_pixels:
        raise Unusable(f"has {width:,} x {height:,} pixels, but may have at most {most_pixels:,} in all")
    if kind != "JPEG" and getattr(picture, "is_animated", False):
        raise Unusable(f"is animated, {getattr(picture, 'n_frames', 2)} pictures in one; save one of them")
    return picture


def _foreign(data: bytes) -> str:
    """Return the predicate on a file that is no picture of a kind that is read."""
    start = data[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not data:
        return "is empty"
    if data[4:8] == b"ftyp":
        if data[8:12] in HEIF:
            return "is HEIC, which needs a decoder that is not installed; save it as JPEG or PNG"
        return "is AVIF; save it as JPEG or PNG" if data[8:12] in (b"avif", b"avis") else "is a video, no picture"
    if start.startswith((b"<!doctype html", b"<html")):
        return "is HTML, no picture; download the picture itself"
    if start.startswith((b"<svg", b"<?xml")):
        return "is SVG or XML; save it as PNG"
    if data[:4] in (b"\x1aE\xdf\xa3", b"RIFF") or data[:3] == b"FLV":
        return "is a video, no picture"
    if data.startswith(b"%PDF"):
        return "is PDF; save its pages as PNG"
    if all(byte >= 32 or byte in b"\t\r\n\f" for byte in data[:512]):
        return "is text, no picture"
    return "is no PNG, JPEG, WebP, GIF, BMP, TIFF or PPM; convert it to one of them"


def _plain(picture: Image.Image, channels: int) -> Image.Image:
    """Return a picture in any mode as L or RGB, upright; transparent parts become white."""
    if (picture.format != "PNG" or "exif" in picture.info) and picture.getexif().get(ORIENTATION, 1) != 1:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith("I"):  # 16 bits, of which Pillow would keep the lower ones
        picture = Image.fromarray((np.asarray(picture).clip(0, 65_535) // 257).astype(np.uint8))
    elif picture.mode == "F":
        raise Unusable("has floating-point pixels; save it with 8 or 16 bits")
    if picture.has_transparency_data:
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture.convert("RGBA"))
    wanted = "L" if channels == 1 else "RGB"
    if picture.mode in ("CMYK", "YCbCr", "HSV", "LAB"):
        picture = picture.convert("RGB")
    return picture if picture.mode == wanted else picture.convert(wanted)
