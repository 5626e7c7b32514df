"""Curves of loss and accuracy in the live view."""

import math
from collections.abc import Callable, Iterator
from typing import Final

from rich.text import Text

from preflight.cli.watch.braille import Curve, draw
from preflight.cli.watch.rich_text import truncated
from preflight.cli.watch.timeline import JobTimeline

MIN_ROWS: Final = 2
AXIS_WIDTH: Final = 8
"""Columns of the numbers next to a curve."""
MIN_WIDTH_WITH_AXIS: Final = 60


def plots(timeline: JobTimeline, width: int, rows: int) -> Iterator[Text]:
    """Yield loss and accuracy side by side, in `rows` rows below their titles."""
    now = timeline.progress
    if now is None or rows < MIN_ROWS:
        return
    end, half = now.epochs, (width - 2) // 2
    validation = timeline.epoch.val_acc if timeline.epoch else None
    beside = "" if validation is None or width < MIN_WIDTH_WITH_AXIS else f", validation {validation:.2%}"
    # Loss falls by orders of magnitude.
    logs = Curve([(x, math.log10(max(1e-9, value))) for x, value in timeline.loss.points])
    left = _plot(logs, end, half, rows, lambda value: f"{10**value:.2g}", "magenta")
    right = _plot(timeline.accuracy, end, half, rows, lambda value: f"{value:.1%}", "blue")
    title = f"accuracy {now.accuracy:.1%}{beside}"
    titles = [truncated(Text(text), half) for text in (f"loss {now.loss:.4f}", title)]
    for one, other in [titles, *zip(left, right, strict=True)]:
        one.pad_right(max(0, half + 2 - one.cell_len))
        yield one + other


def _plot(curve: Curve, end: float, width: int, rows: int, label: Callable[[float], str], color: str) -> Iterator[Text]:
    """Yield the rows of a curve, with its maximum and minimum next to it where they fit."""
    axis = AXIS_WIDTH if width * 2 >= MIN_WIDTH_WITH_AXIS else 0
    low, high = curve.range
    for number, line in enumerate(draw(curve.points, end, width - axis, rows)):
        beside = {0: label(high), rows - 1: label(low)}.get(number, "")
        yield Text(beside.rjust(axis - 1) + " " if axis else "", style="dim") + Text(line, style=color)
