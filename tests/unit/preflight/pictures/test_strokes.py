"""Strokes on even and uneven paper are found, and what shows no drawing is refused with a reason."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw, ImageFilter

from preflight.pictures.strokes import NoStrokes, find_strokes

Plane = npt.NDArray[np.floating]
WIDTH, HEIGHT = 300, 400
BOX = (100, 130, 190, 290)
"""Left, top, right and bottom of the drawing, half a stroke inside."""


def drawn(width: int = 18) -> Plane:
    """Return a 2 made of straight lines, 0..1."""
    left, top, right, bottom = BOX
    mask = Image.new("L", (WIDTH, HEIGHT))
    points = [(left, top + 30), (left + 30, top), (right, top + 40), (left, bottom), (right, bottom)]
    ImageDraw.Draw(mask).line(points, fill=255, width=width, joint="curve")
    return np.asarray(mask.filter(ImageFilter.GaussianBlur(1)), dtype=np.float32) / 255


def on(paper: Plane, pen: float = 0.25, noise: float = 2.0) -> npt.NDArray[np.uint8]:
    """Return the drawing on paper of such brightness, 0..255, whose light the ink takes away."""
    ink = drawn()
    picture = paper * (1 - (1 - pen) * ink) + np.random.default_rng(0).normal(0, noise, paper.shape)
    return np.clip(picture, 0, 255).astype(np.uint8)


def side_by_side(papers: Plane) -> npt.NDArray[np.uint8]:
    """Return the drawing twice on one sheet, each on a half of it."""
    return np.hstack([on(papers), on(papers)])


def flat(light: float = 220) -> Plane:
    return np.full((HEIGHT, WIDTH), light, dtype=np.float32)


def slope() -> Plane:
    return flat() * np.linspace(1, 0.45, WIDTH, dtype=np.float32)


def shadow() -> Plane:
    paper = flat()
    paper[:, :150] *= 0.6  # its edge crosses the drawing
    return paper


def table() -> Plane:
    paper = flat()
    paper[:, :25] = 60
    paper[370:] = 60
    return paper


def on_all_sides() -> Plane:
    paper = flat()
    paper[:40] = paper[370:] = paper[:, :25] = paper[:, 270:] = 60
    return paper


def lines(across: bool, ink: float = 0.7, width: int = 2, margin: int = 0) -> Plane:
    paper = flat()
    inner = paper[margin : HEIGHT - margin, margin : WIDTH - margin]
    for offset in range(width):
        inner[offset::30] = 220 * ink
        if across:
            inner[:, offset::30] = 220 * ink
    return paper


PAPERS: dict[str, Callable[[], Plane]] = {
    "light from one side": slope,
    "shadow across": shadow,
    "table": table,
    "table on all sides": on_all_sides,
    "ruled": lambda: lines(False),
    "squared": lambda: lines(True),
    "squared in dark ink": lambda: lines(True, ink=0.35, width=3),
    "squared within a margin": lambda: lines(True, ink=0.45, margin=20),
    "squared in a slope's light": lambda: lines(True) * slope() / 220,
}


@pytest.mark.parametrize("kind", PAPERS)
@pytest.mark.parametrize("polarity", ["dark", "light"])
def test_strokes_are_found_on_paper_of_every_kind(kind: str, polarity: str) -> None:
    """The box is that of the drawing, and hardly any ink lies outside of it."""
    picture = on(PAPERS[kind]())
    found = find_strokes(picture if polarity == "dark" else 255 - picture)
    assert found.uneven
    assert found.polarity == polarity
    left, top, right, bottom = BOX
    assert (found.box.left, found.box.top, found.box.right, found.box.bottom) == pytest.approx(
        (left - 9, top - 9, right + 9, bottom + 9), abs=9
    )
    ink, expected = found.ink > 0.5, drawn() > 0.5
    assert (ink & expected).sum() > 0.9 * expected.sum()
    assert (ink & ~expected).sum() < 0.25 * expected.sum()
    assert found.ink.max() == 1


def test_even_paper_needs_no_local_background() -> None:
    found = find_strokes(on(flat()))
    assert not found.uneven
    assert found.spread < 0.06
    assert found.box.width == pytest.approx(108, abs=8)


def test_thin_strokes_become_as_wide_as_mnists() -> None:
    """A hairline drawing would all but vanish in 20 pixels."""
    paper = slope()
    thin = (paper * (1 - 0.8 * drawn(3))).astype(np.uint8)
    found = find_strokes(thin)
    assert (found.ink > 0.5).sum() > 3 * (drawn(3) > 0.5).sum()


def test_a_drawing_that_reaches_the_border_of_even_paper_is_read() -> None:
    picture = on(flat(), noise=0)[140:340, 40:260]
    found = find_strokes(picture)
    assert not found.uneven
    assert found.box.top == 0
    assert found.box.width == pytest.approx(108, abs=8)


NONE: dict[str, tuple[Callable[[], npt.NDArray[np.uint8]], str]] = {
    "white": (lambda: np.full((300, 200), 255, dtype=np.uint8), "shows nothing"),
    "squared paper without a drawing": (lambda: lines(True).astype(np.uint8), "uneven paper"),
    "a shadow without a drawing": (lambda: shadow().astype(np.uint8), "uneven paper"),
    "noise": (
        lambda: np.random.default_rng(0).integers(0, 256, (300, 200), dtype=np.uint8),
        "uneven paper",
    ),
}


@pytest.mark.parametrize("kind", NONE)
def test_what_shows_no_drawing_is_refused(kind: str) -> None:
    make, words = NONE[kind]
    with pytest.raises(NoStrokes, match=words) as caught:
        find_strokes(make())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["even", "light from one side", "ruled", "squared"])
def test_drawings_side_by_side_are_counted(kind: str) -> None:
    """One of them is read; that there are two is what makes the answer uncertain."""
    paper = flat() if kind == "even" else PAPERS[kind]()
    assert find_strokes(on(paper)).drawings == 1
    assert find_strokes(side_by_side(paper)).drawings == 2


def test_a_digit_in_two_parts_is_one_drawing() -> None:
    """A 4 whose angle does not touch its stem, and a 5 whose bar lies apart."""
    four, five = Image.new("L", (WIDTH, HEIGHT)), Image.new("L", (WIDTH, HEIGHT))
    ImageDraw.Draw(four).line([(100, 120), (90, 220), (160, 220)], fill=255, width=16)
    ImageDraw.Draw(four).line([(195, 120), (185, 310)], fill=255, width=16)
    ImageDraw.Draw(five).line([(110, 130), (110, 200), (180, 220), (170, 290), (100, 300)], fill=255, width=16)
    ImageDraw.Draw(five).line([(135, 130), (205, 125)], fill=255, width=16)
    for drawing in (four, five):
        assert find_strokes(np.asarray(drawing)).drawings == 1
