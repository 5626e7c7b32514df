"""Photographs of handwritten digits: MNIST's, drawn with a pen on paper, lit, shaded and held at an angle."""

from collections.abc import Callable
from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

Plane = npt.NDArray[np.float32]
Random = np.random.Generator

SHEET = (600, 800)
"""Width and height of the sheet of paper, pixels."""


def photograph(digit: npt.NDArray[np.uint8], seed: int) -> bytes:
    """Return a JPEG of a digit uint8 [28, 28], 255 for ink; `seed` decides paper, pen, light, shadow and angle."""
    rng = np.random.default_rng(seed)
    tone = float(rng.uniform(150, 240))
    sheet = PAPERS[int(rng.integers(len(PAPERS)))](tone, rng)
    ink, pen = _ink(digit, rng), float(rng.uniform(0.12, 0.4))
    # A pen's ink takes light away, from a printed line too.
    picture = _on_table(sheet * (1 - (1 - pen) * ink), tone, rng) * _light(rng)
    if rng.random() < 0.5:
        picture *= _shadow(rng)
    picture += rng.normal(0, rng.uniform(1, 5), picture.shape)
    image = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).convert("RGB")
    file = BytesIO()
    image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 1.5)))).save(
        file, "JPEG", quality=int(rng.integers(70, 96))
    )
    return file.getvalue()


def _ink(digit: npt.NDArray[np.uint8], rng: Random) -> Plane:
    """Return the digit, 0..1, on the sheet: large or small, near the middle, with strokes as wide as its pen."""
    side = int(rng.uniform(0.35, 0.75) * SHEET[0])
    large = Image.fromarray(digit).resize((side, side), Image.Resampling.BICUBIC)
    shades = np.asarray(large.filter(ImageFilter.GaussianBlur(side / 80)), dtype=np.float32)
    drawn = np.clip((shades - rng.uniform(70, 150)) / 20, 0, 1)  # where the stroke ends: the width of the pen
    room = (SHEET[0] - side, SHEET[1] - side)
    left, top = (int(space * rng.uniform(0.3, 0.7)) for space in room)
    ink = np.zeros(SHEET[::-1], dtype=np.float32)
    ink[top : top + side, left : left + side] = drawn
    return ink


def _plain(tone: float, rng: Random) -> Plane:  # noqa: ARG001 - every paper's signature
    return np.full(SHEET[::-1], tone, dtype=np.float32)


def _ruled(tone: float, rng: Random) -> Plane:
    """Return paper with horizontal lines, and perhaps a margin."""
    paper = _plain(tone, rng)
    apart, width, ink = int(rng.integers(40, 80)), int(rng.integers(1, 4)), rng.uniform(0.6, 0.85)
    for offset in range(width):
        paper[offset::apart] = tone * ink
    if rng.random() < 0.5:
        at = int(rng.uniform(0.08, 0.14) * SHEET[0])
        paper[:, at : at + width] = tone * ink
    return paper


def _squared(tone: float, rng: Random) -> Plane:
    paper = _plain(tone, rng)
    apart, width, ink = int(rng.integers(25, 60)), int(rng.integers(1, 3)), rng.uniform(0.6, 0.85)
    for offset in range(width):
        paper[offset::apart] = paper[:, offset::apart] = tone * ink
    return paper


def _dotted(tone: float, rng: Random) -> Plane:
    paper = _plain(tone, rng)
    apart, width, ink = int(rng.integers(25, 50)), int(rng.integers(2, 4)), rng.uniform(0.5, 0.8)
    for down in range(width):
        for right in range(width):
            paper[down::apart, right::apart] = tone * ink
    return paper


def _crumpled(tone: float, rng: Random) -> Plane:
    """Return paper whose creases take more and less light."""
    coarse = rng.normal(0, 1, (10, 8)).astype(np.float32)
    folds = np.asarray(Image.fromarray(coarse).resize(SHEET, Image.Resampling.BICUBIC))
    return np.asarray(tone + 7 * folds, dtype=np.float32)


PAPERS: tuple[Callable[[float, Random], Plane], ...] = (_plain, _ruled, _squared, _dotted, _crumpled)


def _on_table(sheet: Plane, tone: float, rng: Random) -> Plane:
    """Return the sheet seen at an angle; at the borders of every other picture the table shows."""
    width, height = SHEET
    shows = rng.random() < 0.5
    # Corners of the picture in the sheet's pixels: beyond it lies the table.
    reach = 0.06 if shows else -0.06
    corners = [
        (x + (1 if x else -1) * reach * width + rng.uniform(-0.05, 0.05) * width,
         y + (1 if y else -1) * reach * height + rng.uniform(-0.05, 0.05) * height)
        for x, y in ((0, 0), (width, 0), (width, height), (0, height))
    ]  # fmt: skip
    if not shows:
        corners = [(min(max(x, 0), width), min(max(y, 0), height)) for x, y in corners]
    coefficients = _perspective(corners)
    seen = Image.fromarray(sheet).transform(SHEET, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BILINEAR)
    covered = Image.new("F", SHEET, 1.0).transform(SHEET, Image.Transform.PERSPECTIVE, coefficients)
    table = tone * rng.uniform(0.2, 0.6) + 5 * np.sin(np.arange(width, dtype=np.float32) / rng.uniform(3, 30))
    share = np.asarray(covered)
    return np.asarray(np.asarray(seen) * share + table * (1 - share), dtype=np.float32)


def _perspective(corners: list[tuple[float, float]]) -> list[float]:
    """Return Pillow's eight coefficients that take the picture's corners to `corners`, clockwise from the top left."""
    width, height = SHEET
    rows, values = [], []
    for (x, y), (to_x, to_y) in zip(((0, 0), (width, 0), (width, height), (0, height)), corners, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -to_x * x, -to_x * y], [0, 0, 0, x, y, 1, -to_y * x, -to_y * y]]
        values += [to_x, to_y]
    return [float(value) for value in np.linalg.solve(np.array(rows), np.array(values))]


def _light(rng: Random) -> Plane:
    """Return how much light falls on each pixel: from one side, or a lamp's spot, with the lens's dark corners."""
    down, right = np.mgrid[0 : SHEET[1], 0 : SHEET[0]].astype(np.float32)
    x, y = right / SHEET[0] - 0.5, down / SHEET[1] - 0.5
    angle = rng.uniform(0, 2 * np.pi)
    slope = rng.uniform(0, 0.5) * (np.cos(angle) * x + np.sin(angle) * y)
    off_x, off_y = rng.uniform(-0.4, 0.4, 2)
    falloff = rng.uniform(0, 0.5) * ((x - off_x) ** 2 + (y - off_y) ** 2)
    return np.asarray(np.clip(1 - slope - falloff, 0.35, 1.2), dtype=np.float32)


def _shadow(rng: Random) -> Plane:
    """Return the shadow of a hand or a phone: a corner or a band of the picture, with a sharp or a soft edge."""
    width, height = SHEET
    mask = Image.new("L", SHEET, 0)
    draw = ImageDraw.Draw(mask)
    if rng.random() < 0.5:
        at = rng.uniform(0.15, 0.6)
        low, high = sorted(rng.uniform(at - 0.1, at + 0.1, 2))
        draw.polygon([(0, 0), (width * low, 0), (width * high, height), (0, height)], fill=255)
    else:
        center = (rng.uniform(-0.1, 1.1) * width, rng.uniform(0.7, 1.1) * height)
        reach = rng.uniform(0.2, 0.5) * width
        draw.ellipse((center[0] - reach, center[1] - reach, center[0] + reach, center[1] + reach), fill=255)
    turned = mask if rng.random() < 0.5 else mask.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    soft = np.asarray(turned.filter(ImageFilter.GaussianBlur(float(rng.uniform(1, 25)))), dtype=np.float32) / 255
    return np.asarray(1 - rng.uniform(0.15, 0.5) * soft, dtype=np.float32)
