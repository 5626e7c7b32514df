"""Strokes of a drawing: the ink in a grey picture, on even paper or against a local background.

Paper of one shade is known by the border of the picture. A photograph has shade, a shadow, lines, or the edge of a
table: there the background of each pixel is what a morphological closing leaves, which fills strokes and keeps every
edge of light (Serra, "Image Analysis and Mathematical Morphology", 1982), and ink is what the pixel lacks of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from preflight.pictures.masks import Box, Part, closing, components, dilate, opened, widened

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from preflight.pictures.masks import Grey, Mask

    Ink = npt.NDArray[np.float32]

LEAST_CONTRAST: Final = 16
"""Least difference of the darkest and the brightest pixel, of 255; below it the picture is empty."""
NOISE: Final = 0.15
"""Share of the contrast up to which a pixel is paper."""
PHOTOGRAPH: Final = 64
"""Pixels of the shorter side; a smaller picture was made by a program, and its border shows its paper."""
LONGEST: Final = 400
"""Pixels of the longer side in which strokes are looked for against a local background."""
WIDEST_STROKE: Final = 0.3
"""Largest width of a stroke, as a share of the picture's shorter side; wider parts are paper, a shadow or a table."""
MOST_INK: Final = 0.4
"""Share of a picture that a drawing covers at most; more is a sheet of paper on a table."""
CLEAR: Final = 0.3
"""Contrast, as a share of the paper's light, from which ink is no shade of its paper."""
WIDEST_LINE: Final = 7
"""Pixels, of `LONGEST`, up to which the lines of ruled or squared paper are taken out."""
LEAST_SIZE: Final = 0.04
"""Share of the picture's longer side that a drawing has at least."""
MOST_RUNS: Final = 6
"""Strokes that a row or a column of one digit crosses at most; a grid has more."""
AS_TALL: Final = 0.75
"""Share of a drawing's height that another one beside it has at least; the parts of an open 4 have less."""
LEAST_AREA: Final = 0.25
"""Share of the largest part's pixels that another drawing has at least; a piece of a printed line has fewer."""
LEAST_GAP: Final = 0.04
"""Least width of the paper between two drawings, as a share of their height."""
THIN: Final = 1.5
"""Pixels of a stroke where the drawing has 20: those of MNIST are seldom thinner."""


Polarity = Literal["dark", "light"]
POLARITIES: Final[tuple[Polarity, ...]] = ("dark", "light")


class NoStrokes(ValueError):
    """No drawing was found; the text is a clause that begins with a verb, and says what to do."""


@dataclass(frozen=True, slots=True)
class Strokes:
    """The ink of a drawing."""

    ink: Ink
    """Float32 [H, W], 0 for paper to 1 for ink; of the picture's size, or smaller by a whole factor."""
    polarity: Polarity
    """Whether the ink is darker or lighter than its paper."""
    box: Box
    """Box of the drawing, in the pixels of the picture."""
    spread: float
    """Share of the full scale between the darkest and the brightest paper, 2 % on either side left out."""
    uneven: bool
    """Whether a local background was needed."""
    drawings: int = 1
    """Number of drawings of nearly the same height side by side, those that are not in `ink` included."""


def find_strokes(grey: Grey) -> Strokes:
    """Return the ink in a grey picture uint8 [H, W].

    Raises:
        NoStrokes: it has one colour throughout, or no drawing stands apart from lines, shadows and edges.
    """
    import numpy as np

    darkest, brightest = float(grey.min()), float(grey.max())
    if brightest - darkest < LEAST_CONTRAST:
        raise NoStrokes(
            "shows nothing: it has one colour throughout, where what is transparent is white; "
            "draw dark on light, or light on dark"
        )
    plain, clear, even = _on_even_paper(grey, darkest, brightest)
    if min(grey.shape) < PHOTOGRAPH:
        return plain
    plain = replace(plain, drawings=_count_drawings(plain.ink > 0))
    alone = np.count_nonzero(plain.ink) < MOST_INK * grey.size and _is_one_digit(plain.ink > 0)
    if clear and alone:
        return plain
    found = _on_uneven_paper(grey, (plain.polarity,) if even and alone else POLARITIES)
    if found is not None:
        return found
    if clear or (even and alone):
        return plain  # a filled drawing, or one that reaches the border of even paper
    raise NoStrokes(
        "is uneven paper to the eye of the program: no drawing stands apart from lines, shadows and the edges of "
        "the picture; photograph one drawing on plain paper, in even light, with paper on each side of it"
    )


def _on_even_paper(grey: Grey, darkest: float, brightest: float) -> tuple[Strokes, bool, bool]:
    """Return the ink, which is all that differs from the border of the picture, and how much of the border is paper.

    The two flags say whether all of the border is, and whether most of it is.
    """
    import numpy as np

    frame = max(1, min(grey.shape) // 28)
    inside = np.zeros(grey.shape, dtype=bool)
    inside[frame:-frame, frame:-frame] = True
    border = grey[~inside]
    paper = float(np.median(border))
    dark = paper > (darkest + brightest) / 2
    ink = (grey.astype(np.float32) - paper) / ((darkest if dark else brightest) - paper)
    ink[ink < NOISE] = 0
    rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
    box = Box(int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    strokes = Strokes(ink, "dark" if dark else "light", box, _spread(border), uneven=False)
    return strokes, not ink[~inside].any(), _spread(border, 10) < NOISE


def _spread(paper: Grey, beyond: int = 2) -> float:
    """Return the range of paper as a share of the full scale, `beyond` percent on either side left out."""
    import numpy as np

    low, high = np.percentile(paper, (beyond, 100 - beyond))
    return float(high - low) / 255


def _on_uneven_paper(grey: Grey, polarities: Sequence[Polarity]) -> Strokes | None:
    """Return the ink against a local background; None: no drawing stands apart."""
    import numpy as np

    factor = -(-max(grey.shape) // LONGEST)
    height, width = (side // factor for side in grey.shape)
    small = grey[: height * factor, : width * factor].reshape(height, factor, width, factor)
    light = np.rint(small.mean((1, 3), dtype=np.float32)).astype(np.uint8)
    found: list[tuple[float, Strokes]] = []
    for polarity in polarities:
        strokes, contrast = _against_background(light, polarity)
        if strokes is not None and contrast > 0:
            found.append((contrast, replace(strokes, box=strokes.box.scaled(factor))))
        if contrast > CLEAR:
            break
    return max(found, key=lambda each: each[0])[1] if found else None


def _against_background(light: Grey, polarity: Polarity) -> tuple[Strokes | None, float]:
    """Return the drawing in ink of a polarity, and its contrast: the share that the ink lacks of the paper's light.

    An area that strokes enclose stands apart from its background, too, but is as light as most of its surroundings.
    """
    import numpy as np

    lit = light if polarity == "dark" else 255 - light
    paper = closing(lit, max(3, round(WIDEST_STROKE * min(light.shape))))
    strength = 1 - lit / np.maximum(paper, 0.3 * paper.max()).astype(np.float32)
    strength -= np.median(strength)  # a maximum of noisy pixels lies above their mean
    drawing = _drawing(strength)
    if drawing is None:
        return None, 0.0
    box, ink, drawings = drawing
    down, right = box.height // 4, box.width // 4
    around = (
        slice(max(0, box.top - down), box.bottom + down),
        slice(max(0, box.left - right), box.right + right),
    )  # fmt: skip
    most = float(np.median(lit[around]))
    contrast = 1 - float(lit[around][ink[around] > 0.5].mean()) / max(1.0, most)
    side = max(box.width, box.height)
    return Strokes(_thickened(ink, side), polarity, box, _spread(paper), uneven=True, drawings=drawings), contrast


def _drawing(strength: Ink) -> tuple[Box, Ink, int] | None:
    """Return the drawing in a picture of the light that each pixel lacks of its background: box, ink, 0..1, and number.

    The number is that of `Strokes.drawings`.
    """
    import numpy as np

    strength = _without_edges(strength)
    full = float(np.percentile(_smoothed(strength), 99.9))
    noise = 1.4826 * float(np.median(np.abs(strength)))
    if full < max(LEAST_CONTRAST / 255, 5 * noise):
        return None
    mask = strength > full / 2  # half way between paper and ink, where most printed lines are paper
    for side in range(1, WIDEST_LINE + 1):
        seeds = opened(mask, side)
        if not seeds.any():
            return None
        found = _main_part(seeds)
        if found is None:
            continue
        box, chosen, drawings = found
        near = widened(chosen, 2 * (side // 2) + 5)
        ink = np.where(near, np.clip(strength / full, 0, 1), 0).astype(np.float32)
        ink[ink < NOISE] = 0
        return box, ink, drawings
    return None


def _without_edges(strength: Ink) -> Ink:
    """Return the picture without wide dark things that reach its border: the strip of a table, a finger, a pen."""
    import numpy as np

    wide = opened(strength > NOISE, WIDEST_LINE + 1)
    parts, labels = components(wide)
    at_border = [part.label for part in parts if _reaches_border(part.box, wide.shape)]
    if not at_border:
        return strength
    gone = widened(np.isin(labels, at_border), WIDEST_LINE)
    return np.where(gone, 0, strength).astype(np.float32)


def _smoothed(grey: Ink) -> Ink:
    """Return the mean of each pixel's square of 3x3."""
    import numpy as np

    padded = np.pad(grey, 1, mode="edge")
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    mean: Ink = (rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]) / 9
    return mean


def _reaches_border(box: Box, shape: tuple[int, ...]) -> bool:
    return box.left <= 0 or box.top <= 0 or box.bottom >= shape[0] or box.right >= shape[1]


def _main_part(mask: Mask) -> tuple[Box, Mask, int] | None:
    """Return the largest part that may be a drawing, with the smaller ones close to it: box, pixels and `drawings`."""
    import numpy as np

    parts, labels = components(mask)
    least = LEAST_SIZE * max(mask.shape)
    inner = [part for part in parts if not _reaches_border(part.box, mask.shape) and not _is_line(part, mask.shape)]
    if not inner or max(inner[0].box.width, inner[0].box.height) < least:
        return None
    box, chosen, rest = inner[0].box, [inner[0].label], inner[1:]
    near = max(box.width, box.height) / 5
    for part in rest:
        if part.area > inner[0].area / 50 and box.gap(part.box) <= near:
            box = box.joined(part.box)
            chosen.append(part.label)
    kept = np.isin(labels, chosen)
    large = [part.label for part in inner if part.area > LEAST_AREA * inner[0].area]
    drawings = _count_drawings(np.isin(labels, large))
    return (box, kept, drawings) if _is_one_digit(kept) else None


def _is_line(part: Part, shape: tuple[int, ...]) -> bool:
    """Whether a part is a printed line: over half of the picture long, and hardly thicker than a hair."""
    long, short = max(part.box.width, part.box.height), min(part.box.width, part.box.height)
    return long > min(shape) / 2 and short < long / 20


def _is_one_digit(mask: Mask) -> bool:
    """Whether few strokes lie side by side: a grid of lines crosses each row and column many times."""
    import numpy as np

    for pixels in (mask, mask.T):
        begun = np.count_nonzero(np.diff(pixels.astype(np.int8), axis=1) == 1, axis=1)
        drawn = begun[pixels.any(1)]
        if len(drawn) and np.percentile(drawn, 90) > MOST_RUNS:
            return False
    return True


def _count_drawings(mask: Mask) -> int:
    """Return the number of drawings side by side: of parts with paper between them that are nearly as tall as all."""
    import numpy as np

    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    height = rows[-1] + 1 - rows[0]
    parts = np.split(columns, np.flatnonzero(np.diff(columns) > max(1, LEAST_GAP * height)) + 1)
    extents = [np.flatnonzero(mask[:, part[0] : part[-1] + 1].any(1)) for part in parts]
    return max(1, sum(bool(extent[-1] + 1 - extent[0] >= AS_TALL * height) for extent in extents))


def _thickened(ink: Ink, side: int) -> Ink:
    """Return ink whose strokes are not thinner than those of MNIST: little would be left of them in 20 pixels."""
    import numpy as np

    mask, width = ink > 0.5, 1
    while width < THIN * side / 20 and np.count_nonzero(opened(mask, width + 1)) > np.count_nonzero(mask) / 2:
        width += 1
    missing = round(THIN * side / 20) - width
    return np.float32(1 / 255) * dilate((255 * ink).astype(np.uint8), missing + 1) if missing > 0 else ink
