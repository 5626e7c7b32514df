"""HTML and SVG out of plain text: what is not markup already is escaped, so that no name can become a tag."""

import html
import re
from collections.abc import Sequence
from typing import Final

_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML has no place for: most control characters, and halves of surrogate pairs."""


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def text(plain: str) -> Markup:
    """Return `plain` escaped; markup is returned as it is."""
    return plain if isinstance(plain, Markup) else Markup(html.escape(_UNPRINTABLE.sub("\ufffd", plain)))


def join(*parts: str) -> Markup:
    """Return the parts one after another, escaped where they are not markup."""
    return Markup("".join(text(part) for part in parts))


def tag(name: str, *children: str, **attributes: str | int) -> Markup:
    """Return an element; `class_` stands for `class`, and `text_anchor` for `text-anchor`."""
    named = "".join(f' {_hyphened(key)}="{text(str(value))}"' for key, value in attributes.items())
    return Markup(f"<{name}{named}>{join(*children)}</{name}>")


def _hyphened(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], classes: Sequence[str] = ()) -> Markup:
    """Return a table whose rows are named by their first cell; `classes` are those of its columns."""
    kinds = [*classes, *[""] * (len(headings) - len(classes))]
    head = (tag("th", heading, scope="col", class_=kind) for heading, kind in zip(headings, kinds, strict=True))
    body = (
        tag("tr", *(
            tag("td", cell, class_=kind) if column else tag("th", cell, scope="row", class_=kind)
            for column, (cell, kind) in enumerate(zip(row, kinds, strict=True))
        ))
        for row in rows
    )  # fmt: skip
    shown = tag("thead", tag("tr", *head)) if any(headings) else text("")
    return tag("table", tag("caption", caption), shown, tag("tbody", *body))
