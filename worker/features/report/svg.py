"""Figures of matplotlib as SVG inside a page, with the page's fonts and colours."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from io import StringIO
from typing import Final, Protocol

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

WIDTH: Final = 288
"""Points across; as narrow as a phone, so that text stays readable there."""
INK, SOFT, HAIR, ACCENT, PALE, OWN, BAD = (f"#0a0b0{number}" for number in range(1, 8))
"""Placeholders for the colours of the page, which depend on its theme."""
COLOURS: Final = {
    INK: "var(--ink)", SOFT: "var(--soft)", HAIR: "var(--hair)", ACCENT: "var(--accent)", PALE: "var(--pale)",
    OWN: "var(--own)", BAD: "var(--bad)",
}  # fmt: skip


NO_METADATA: Final = dict.fromkeys(("Date", "Creator", "Format", "Type"))


class SvgCanvas(Protocol):
    """The method of matplotlib's canvas that is used here; matplotlib has no type for it."""

    def print_svg(self, filename: StringIO, *, metadata: Mapping[str, None]) -> None:
        """Write the figure as an SVG document."""


def draw_svg(name: str, height: int, title: str, description: str, draw: Callable[[Figure], None]) -> Markup:
    """Return what `draw` puts on a figure of `height` points as an SVG element whose ids begin with `name`."""
    with _style():
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        draw(figure)
        drawn = StringIO()
        canvas: SvgCanvas = FigureCanvasSVG(figure)
        canvas.print_svg(drawn, metadata=NO_METADATA)  # savefig would draw it twice
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img"><title>{}</title><desc>{}</desc>{}</svg>'
    ).format(WIDTH, height, title, description, _inline(drawn.getvalue(), name))  # fmt: skip


def _style() -> AbstractContextManager[None]:
    return rc_context({
        "svg.fonttype": "none", "svg.hashsalt": "preflight", "text.parse_math": False, "text.color": INK,
        "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "axes.linewidth": 0.8, "axes.spines.top": False,
        "axes.spines.right": False, "axes.titlecolor": SOFT, "axes.titlelocation": "left", "axes.titlesize": 10.0,
        "axes.axisbelow": True, "axes.grid": True, "grid.color": HAIR, "grid.linewidth": 0.6, "font.size": 10.0,
        "xtick.color": SOFT, "ytick.color": SOFT, "xtick.labelcolor": SOFT, "ytick.labelcolor": SOFT,
        "lines.linewidth": 1.6, "lines.markersize": 4.5, "legend.frameon": False, "legend.fontsize": 10.0,
        "legend.labelcolor": INK, "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    })  # fmt: skip


def _inline(svg: str, name: str) -> Markup:
    inner = svg[svg.index(">", svg.index("<svg ")) + 1 : svg.rindex("</svg>")]
    inner = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", inner, flags=re.DOTALL)
    inner = inner.replace("xlink:href", "href")
    inner = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", inner)
    inner = re.sub(r" font-family: [^;\"]*;", "", inner)
    for placeholder, colour in COLOURS.items():
        inner = inner.replace(placeholder, colour)
    return Markup(inner)  # noqa: S704 - drawn by matplotlib, which escapes text
