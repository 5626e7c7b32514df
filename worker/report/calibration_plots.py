"""Drawing: scales, axes and marks as SVG.

Across, everything is in percent and down in pixels, so that a chart is as wide as the page and its text never shrinks.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from calibration.search.search import GAIN
from worker.report import numbers as figures
from worker.report.markup import Markup, join, tag

MARKS: Final = {
    "square": "M-4-4h8v8h-8z",
    "diamond": "M0-5.5 5.5 0 0 5.5-5.5 0z",
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "down": "M-4.5-3.5h9l-4.5 8z",
    "up": "M-4.5 3.5h9l-4.5-8z",
    "barred": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0zM-3.5 3.5 3.5-3.5",
    "cross": "M-4-4 4 4M-4 4 4-4",
    "dash": "M-5 0H5",
    "left": "M4-5-5 0 4 5z",
    "right": "M-4-5 5 0-4 5z",
}
"""Shapes around (0, 0): what is told apart by colour is told apart by shape too."""
TOP: Final = 14
BOTTOM: Final = 26
"""Pixels above and below the plot area of a chart, for labels."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values along an axis; what lies outside is drawn at its end."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        """Return where `value` lies between the ends, from 0 to 1."""
        low, at, high = self._at(self.low), self._at(value), self._at(self.high)
        return min(1.0, max(0.0, (at - low) / (high - low))) if high > low else 0.5

    def holds(self, value: float) -> bool:
        """Whether `value` lies between the ends."""
        return self.low <= value <= self.high

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values between the ends, about as many as `most` at most."""
        if self.log and self.high / self.low > 3:
            bottom, top = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            sets: list[tuple[float, ...]] = [(1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)]
            for digits in sets:
                found = self._inside(digit * 10.0**power for power in range(bottom, top + 1) for digit in digits)
                if len(found) <= most:
                    return found
            return found[:: math.ceil(len(found) / most)]
        rough = (self.high - self.low) / max(1, most - 1)
        if rough < sys.float_info.min:  # one value, or values that no float can tell apart
            return [self.low]
        magnitude = 10.0 ** math.floor(math.log10(rough))
        step = next(magnitude * digit for digit in (1, 2, 5, 10) if magnitude * digit >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return self._inside(step * (first + index) for index in range(2 * most + 2))

    def _inside(self, values: Iterable[float]) -> list[float]:
        slack = 1e-9 * (self.high - self.low)
        return [value for value in values if self.low - slack <= value <= self.high + slack]

    def _at(self, value: float) -> float:
        return math.log(max(value, self.low)) if self.log else value


def ratio_scale(values: Iterable[float]) -> Scale:
    """Return a logarithmic scale with 1 well inside that holds the values, as far as 16 times either way."""
    listed = list(values)
    low, high = min([0.8, *listed]) / 1.06, max([1.25, *listed]) * 1.06
    return Scale(max(low, 1 / 16), min(high, 16.0), log=True)


def linear_scale(values: Iterable[float]) -> Scale:
    """Return a scale from zero to a little above the largest value."""
    return Scale(0.0, max([1e-9, *values]) * 1.06)


def log_scale(values: Iterable[float]) -> Scale:
    """Return a logarithmic scale around the values, which are positive."""
    listed = list(values)
    return Scale(min(listed) / 1.12, max(listed) * 1.12, log=True)


def percent(share: float) -> str:
    """Return a share as a coordinate across."""
    return f"{100 * share:.2f}%"


def shapes() -> Markup:
    """Return the marks, once for the whole page; charts refer to them by name."""
    paths = (tag("path", id=f"m-{name}", d=path) for name, path in MARKS.items())
    return tag("svg", tag("defs", *paths), width=0, height=0, class_="defs", aria_hidden="true")


def mark(shape: str, kind: str, x: str, y: str | int) -> Markup:
    """Return one mark; `kind` is what it stands for."""
    return tag("use", href=f"#m-{shape}", x=x, y=y, class_=f"mark {shape} {kind}")


def glyph(shape: str, kind: str) -> Markup:
    """Return a mark to stand beside the word for it, in running text."""
    return glyph_of(mark(shape, kind, "50%", "50%"))


def glyph_of(drawn: Markup) -> Markup:
    """Return what is drawn within 16 pixels, to stand beside the word for it."""
    return tag("svg", drawn, class_="glyph", aria_hidden="true")


def picture(title: str, description: str, *parts: str, class_: str, height: int | None = None) -> Markup:
    """Return an SVG that says in words what it shows."""
    size: dict[str, str | int] = {} if height is None else {"height": height}
    words = (tag("title", title), tag("desc", description))
    return tag("svg", *words, *parts, class_=class_, role="img", width="100%", **size)


def across(scale: Scale, low: float, high: float, y: str | int, kind: str) -> Markup:
    """Return a horizontal line between two values."""
    return tag("line", x1=percent(scale.share(low)), x2=percent(scale.share(high)), y1=y, y2=y, class_=kind)


def interval(scale: Scale, value: float, low: float | None, high: float | None, shape: str, kind: str) -> Markup:
    """Return a value with its interval, in the middle of the height; an arrow where it lies beyond the scale."""
    parts = [] if low is None or high is None else [across(scale, low, high, "50%", f"interval {kind}")]
    if not scale.holds(value):
        shape = "left" if value < scale.low else "right"
    return join(*parts, mark(shape, kind, percent(scale.share(value)), "50%"))


def uprights(scale: Scale, values: Iterable[float], kind: str) -> Markup:
    """Return vertical lines over the whole height."""
    shares = [percent(scale.share(value)) for value in values]
    return join(*(tag("line", x1=share, x2=share, y1="0", y2="100%", class_=kind) for share in shares))


def guides(scale: Scale) -> Markup:
    """Return the lines that ratios are read against: as fast, and faster by what counts."""
    return join(uprights(scale, [1.0], "one"), uprights(scale, [GAIN], "gain"))


def ratio_axis(scale: Scale) -> Markup:
    """Return the numbers of a scale of ratios: as far apart to either side of 1."""
    near, far = (0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.6, 2.0, 2.5), tuple(2.0**power for power in range(-4, 5))
    ticks = [tick for tick in (near if scale.high / scale.low < 4 else far) if scale.holds(tick)]
    numbers = (tag("text", f"{tick:.3g}", x=percent(scale.share(tick)), y="16", class_="x") for tick in ticks)
    return picture("Axis", "How many times as fast, logarithmic", *numbers, class_="scale", height=22)


def legend(entries: Iterable[tuple[str, str, str, str]]) -> Markup:
    """Return what the shapes stand for, from (shape, kind, word, meaning)."""
    items = (tag("li", glyph(shape, kind), tag("b", word), f" {meaning}") for shape, kind, word, meaning in entries)
    return tag("ul", *items, class_="legend")


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart with two axes."""

    x: Scale
    y: Scale
    height: int
    strip: int = 0
    """Pixels just above the axis that are kept free for what has no value."""

    def across(self, value: float) -> str:
        """Return the coordinate of `value` across."""
        return percent(self.x.share(value))

    def down(self, value: float) -> str:
        """Return the coordinate of `value` down."""
        floor = self.bottom - self.strip
        return f"{floor - self.y.share(value) * (floor - TOP):.1f}"

    @property
    def bottom(self) -> int:
        """Where the axis is."""
        return self.height - BOTTOM

    def axes(self) -> Markup:
        """Return rules at the ticks of `y`, and the ticks of both axes in numbers."""
        parts = []
        for value in self.y.ticks(5):
            parts.append(tag("line", x1="0", x2="100%", y1=self.down(value), y2=self.down(value), class_="rule"))
            parts.append(self._number(value, "0", self.down(value), dx="-8", dy="4", class_="y"))
        parts.append(tag("line", x1="0", x2="100%", y1=self.bottom, y2=self.bottom, class_="axis"))
        for value in self.x.ticks():
            at = self.across(value)
            parts.append(tag("line", x1=at, x2=at, y1=self.bottom, y2=self.bottom + 4, class_="axis"))
            parts.append(self._number(value, at, self.bottom, dx="0", dy="18", class_="x"))
        return join(*parts)

    @staticmethod
    def _number(value: float, x: str, y: str | int, **attributes: str) -> Markup:
        return tag("text", f"{value:,.6g}" if value < 1e6 else figures.number(value), x=x, y=y, **attributes)

    def line(self, start: tuple[float, float], end: tuple[float, float], kind: str) -> Markup:
        """Return a line between two points."""
        return tag(
            "line", x1=self.across(start[0]), y1=self.down(start[1]),
            x2=self.across(end[0]), y2=self.down(end[1]), class_=kind,
        )  # fmt: skip

    def label(self, words: str, x: float, y: str | int, kind: str) -> Markup:
        """Return words at a point, grown to the side where there is room."""
        share = self.x.share(x)
        anchor, dx = ("start", "6") if share < 0.5 else ("end", "-6")
        return tag("text", words, x=percent(share), y=y, dx=dx, text_anchor=anchor, class_=kind)
