"""Text blocks of the live view."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from preflight.cli.formatting.text import printable


def labelled(label: str, columns: int, lines: list[Text]) -> Iterator[Text]:
    """Yield lines with a label of `columns` columns before the first one."""
    for number, line in enumerate(lines):
        yield Text(("" if number else label).ljust(columns), style="dim") + line


def bar(share: float, width: int, color: str) -> Text:
    """Return a progress bar with its percentage."""
    percent = f" {share:4.0%}"
    room = max(1, width - len(percent))
    full = round(share * room)
    return (
        Text("\N{BOX DRAWINGS HEAVY HORIZONTAL}" * full, style=color)
        + Text("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (room - full), style="dim")
        + Text(percent)
    )


def wrapped(text: str, console: Console, width: int, most: int, *, style: str = "") -> list[Text]:
    """Return a text in at most `most` lines of `width` columns, truncated with an ellipsis."""
    lines = [*Text(printable(text), style=style).wrap(console, max(1, width))]
    for line in lines:
        line.rstrip()
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], truncated(Text(" ", style=style).join(lines[most - 1 :]), width)]


def left_and_right(left: Text, right: Text, width: int) -> Text:
    """Return a line with one text at each end; the left one is truncated."""
    left = truncated(left, max(1, width - right.cell_len - 1))
    return left + Text(" " * max(1, width - left.cell_len - right.cell_len)) + right


def truncated(text: Text, width: int) -> Text:
    """Return the text in at most `width` columns."""
    text.truncate(max(1, width), overflow="ellipsis")
    return text
