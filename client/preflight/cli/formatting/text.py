"""Aligned columns, and text of others without control characters."""

from collections.abc import Sequence


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows of equally many cells as lines with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def printable(text: str) -> str:
    """Return `text` on one line, control characters escaped."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
