"""Preprocessing of a picture: of the size of the training images; for grey ones white ink on black, centred like MNIST.

MNIST's digits fit into 20x20 pixels, anti-aliased, in 28x28 with their centre of mass in the middle (LeCun, Cortes and
Burges, "The MNIST database of handwritten digits"). In other data sets the drawing fills more; how much is measured.
For models of images in colour a picture stays as it is: scaled without distortion, in the middle of black.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from pydantic import Field, JsonValue

from preflight.errors import InvalidConfig
from preflight.files.atomic_files import NotRegular, read_text
from preflight.pictures.png import png
from preflight.pictures.strokes import NOISE, NoStrokes, Strokes, find_strokes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

    from preflight.pictures.form import Form

FORMATS: Final = ("PNG", "JPEG")
LARGEST_FILE: Final = 64 << 20
"""Most bytes of a picture's file."""
MOST_PIXELS: Final = 20_000_000
WORKING: Final = 1000
"""Pixels of the longer side; a picture with at least twice as many is reduced first."""
CENTRED: Final = 1.5
"""Pixels up to which a drawing in a picture of the model's size may differ from size and place of MNIST's."""
LONGEST_CAUSE: Final = 200
"""Most characters of Pillow's message about a damaged file."""
Filled = Annotated[float, Field(gt=0, le=1)]
"""Share of the image's side that the longer side of the drawing has: 20/28 in MNIST."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """A picture as it was read."""

    image: npt.NDArray[np.uint8]
    """Input of the network, uint8 [C, H, W]."""
    strokes: Strokes | None = None
    """The ink, its box in the pixels of the picture; None: the picture was not read as a drawing."""

    def described(self) -> dict[str, JsonValue]:
        """Return the fields of `reading` in an answer."""
        seen: dict[str, JsonValue] = {"image": base64.b64encode(png(self.image)).decode()}
        if self.strokes is None:
            return seen
        return {
            **seen, "ink": self.strokes.polarity, "box": [*astuple(self.strokes.box)],
            "background_spread": round(self.strokes.spread, 3), "uneven": self.strokes.uneven,
            "drawings": self.strokes.drawings,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture in memory: the bytes of its file."""

    data: bytes = field(repr=False)

    def __str__(self) -> str:
        """Return its name in a sentence."""
        return "the picture"


def measure_fill(images: npt.NDArray[np.uint8]) -> float:
    """Return the median share that a drawing fills in images [N, C, H, W]; 1 where all are empty."""
    import numpy as np

    ink = images.max(1) > NOISE * 255
    extents = [_extent(ink.any(axis)) for axis in (1, 2)]
    return min(1.0, float(np.median(np.maximum(*extents))) / min(images.shape[2:])) or 1.0


def _extent(drawn: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return how many pixels there are from the first to the last one that is drawn, for each of [N, pixels]."""
    import numpy as np

    size = drawn.shape[1]
    return np.where(drawn.any(1), size - drawn.argmax(1) - drawn[:, ::-1].argmax(1), 0)


def read_drawing(
    path: Path | Picture, height: int, width: int, filled: float, *, most_pixels: int = MOST_PIXELS
) -> Reading:
    """Return the drawing in the picture at `path` as uint8 [1, height, width], 0 for paper and 255 for ink.

    Raises:
        InvalidConfig: it cannot be read, is no picture of a kind that is read here, or shows no drawing.
    """
    grey, factor = _decoded(path, most_pixels, _brightness)
    try:
        strokes = find_strokes(grey)
    except NoStrokes as error:
        raise InvalidConfig(f"{path} {error}", field="image") from error
    image = _as_it_is(grey, strokes, filled) if grey.shape == (height, width) else None
    if image is None:
        image = center_digit(strokes.ink, height, width, filled)
    if not image.any():
        raise InvalidConfig(
            f"{path} shows only specks, of which nothing is left in {height} x {width} pixels; draw larger",
            field="image",
        )
    return Reading(image[None], replace(strokes, box=strokes.box.scaled(factor)))


def _as_it_is(grey: npt.NDArray[np.uint8], strokes: Strokes, filled: float) -> npt.NDArray[np.uint8] | None:
    """Return a picture whose drawing lies where `center_digit` would put it, ink on 0; None: it lies elsewhere."""
    import numpy as np

    side, ink, box = min(grey.shape), strokes.ink, strokes.box
    places = [ink.sum(1 - axis) @ (np.arange(ink.shape[axis]) + 0.5) / ink.sum() for axis in (0, 1)]
    apart = max(abs(place - length / 2) for place, length in zip(places, ink.shape, strict=True))
    if apart > CENTRED or abs(max(box.width, box.height) - filled * side) > CENTRED:
        return None
    return grey if strokes.polarity == "light" else 255 - grey


def read_colour_picture(
    path: Path | Picture, height: int, width: int, *, most_pixels: int = MOST_PIXELS
) -> npt.NDArray[np.uint8]:
    """Return the picture at `path` as uint8 [3, height, width], scaled to fit in, black around it.

    Raises:
        InvalidConfig: it cannot be read, or is no picture of a kind that is read here.
    """
    import numpy as np

    image = np.zeros((3, height, width), dtype=np.uint8)
    pixels = _decoded(path, most_pixels, lambda picture: _fitted(picture, height, width))
    top, left = (height - pixels.shape[0]) // 2, (width - pixels.shape[1]) // 2
    image[:, top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels.transpose(2, 0, 1)
    return image


def _fitted(picture: Image.Image, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return uint8 [H, W, 3] of a picture in any mode, as large as fits into `height` and `width`; antialiased."""
    import numpy as np
    from PIL import Image

    scale = min(width / picture.width, height / picture.height)
    size = (min(width, max(1, round(picture.width * scale))), min(height, max(1, round(picture.height * scale))))
    by = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.BICUBIC
    return np.asarray(_opaque(picture).resize(size, by, reducing_gap=3.0))


def read_as_imported(path: Path | Picture, form: Form, most_pixels: int = MOST_PIXELS) -> npt.NDArray[np.uint8]:
    """Return the picture at `path` as uint8 [C, H, W], made as an import makes those of its data set.

    Raises:
        InvalidConfig: it cannot be read, or is no picture of a kind that is read here.
    """
    from preflight.pictures.decoding import Unusable, decode

    try:
        return decode(read_file(path), form, most_pixels)[0]
    except Unusable as error:
        raise InvalidConfig(f"{path} {error}", field="image") from error


def center_digit(ink: npt.NDArray[np.float32], height: int, width: int, filled: float) -> npt.NDArray[np.uint8]:
    """Return ink [H, W], 0..1 and somewhere above 0, as uint8 [height, width], of which it fills the share `filled`."""
    import numpy as np
    from PIL import Image

    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    drawn = Image.fromarray((255 * ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]).astype(np.uint8))
    scale = filled * min(height, width) / max(drawn.size)
    size = (max(1, round(drawn.width * scale)), max(1, round(drawn.height * scale)))
    small = np.asarray(drawn.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    image, mass = np.zeros((height, width), dtype=np.uint8), small.sum()
    if not mass:
        return image
    middle = (small.sum(1) @ (np.arange(size[1]) + 0.5) / mass, small.sum(0) @ (np.arange(size[0]) + 0.5) / mass)
    top = min(max(0, round(height / 2 - float(middle[0]))), height - size[1])
    left = min(max(0, round(width / 2 - float(middle[1]))), width - size[0])
    # Of thin strokes little is left that small; the darkest ink stays black.
    image[top : top + size[1], left : left + size[0]] = np.rint(small * (255 / small.max()))
    return image


def _decoded(path: Path | Picture, most_pixels: int, pixels_of: Callable[[Image.Image], T]) -> T:
    """Return `pixels_of` the picture at `path`, upright."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # the bound here is lower, and its sentence says what to do
    data = read_file(path)
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            _require_single_image(image, path, most_pixels)
            return pixels_of(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        kinds = " or ".join(FORMATS)
        raise InvalidConfig(f"{path} is no picture in {kinds}; convert it to one of them", field="image") from error
    except InvalidConfig:
        raise
    except MemoryError as error:
        raise InvalidConfig(
            f"{path} needs more memory than there is; make the picture smaller", field="image"
        ) from error
    except Exception as error:  # Pillow's parsers let through whatever their parts raise, e.g. struct.error
        why = " ".join(str(error).split())[:LONGEST_CAUSE] or type(error).__name__
        raise InvalidConfig(f"{path} is damaged ({why}); save it again", field="image") from error


def read_file(path: Path | Picture) -> bytes:
    """Return the bytes of a picture's file; raises `InvalidConfig`."""
    try:
        data = path.data if isinstance(path, Picture) else read_text(path.resolve(strict=True), LARGEST_FILE)
    except NotRegular as error:
        raise InvalidConfig(f"{error}; name a picture", field="image") from error
    except OSError as error:
        raise InvalidConfig(f"{path} cannot be read ({error.strerror}); check the path", field="image") from error
    if not data:
        raise InvalidConfig(f"{path} is empty; save the picture again", field="image")
    return data


def _require_single_image(image: Image.Image, path: Path | Picture, most_pixels: int) -> None:
    """Raise `InvalidConfig` for a picture that is too large to be decoded, by its header, or has several frames."""
    if image.width * image.height > most_pixels:
        raise InvalidConfig(
            f"{path} has {image.width:,} x {image.height:,} pixels, but may have at most {most_pixels:,} in all; "
            "make it smaller",
            field="image",
        )
    frames = getattr(image, "n_frames", 1) if image.format == "PNG" else 1  # a JPEG's further ones are previews
    if frames > 1:
        raise InvalidConfig(f"{path} is animated, {frames} pictures in one; save one of them", field="image")


def _brightness(image: Image.Image) -> tuple[npt.NDArray[np.uint8], int]:
    """Return uint8 [H, W] of a picture in any mode, and how many times smaller it is: once or more."""
    import numpy as np

    grey, factor = _opaque(image).convert("L"), max(1, max(image.size) // WORKING)
    return np.asarray(grey.reduce(factor)), factor


def _opaque(image: Image.Image) -> Image.Image:
    """Return a picture in any mode as RGB; transparent parts are white."""
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I"):  # 16 bits, of which Pillow would keep the lower ones
        image = Image.fromarray((np.asarray(image) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")
