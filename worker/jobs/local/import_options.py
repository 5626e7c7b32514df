"""Options of an import as texts: of the command line, and of a query."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from preflight.cli.arguments import quote
from preflight.errors import InvalidConfig

if TYPE_CHECKING:
    from training.importing.form import Options


def import_options(asked: Mapping[str, object], mark: str = "") -> Options:
    """Return the options of an import; `mark` precedes their names in messages. Raises `InvalidConfig`."""
    from pydantic import TypeAdapter, ValidationError

    from training.importing.form import Options
    from training.importing.sources.detect import FORMATS

    format_ = asked.get("format_")
    if format_ is not None and format_ not in FORMATS:
        raise InvalidConfig(f"{mark}format is {quote(str(format_))}; use one of {', '.join(FORMATS)}", field="format")
    given = {
        "size": None if asked.get("size") is None else _size(str(asked["size"]), mark),
        "channels": asked.get("channels"), "ink": asked.get("ink"), "group": asked.get("group"), "format": format_,
        "keep_duplicates": asked.get("keep_duplicates"),
        **{name: None if asked.get(name) is None else _share(name, str(asked[name]), mark, most)
           for name, most in (("test", 0.9), ("validation", 0.9), ("max_refused", 1.0))},
    }  # fmt: skip
    try:
        return TypeAdapter(Options).validate_python({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        raise InvalidConfig(
            f"{mark}{field} is {quote(str(given.get(field)))}, which it may not be", field=field
        ) from error


def _size(text: str, mark: str) -> tuple[int, int]:
    """Return height and width; raises `InvalidConfig`."""
    from training.importing.form import MAX_SIDE

    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and len(part) < 4 for part in parts):
        raise InvalidConfig(f"{mark}size is {quote(text)}, but must be N or HxW, such as 28 or 32x48", field="size")
    height, width = int(parts[0]), int(parts[-1])
    if not (min(height, width) >= 1 and max(height, width) <= MAX_SIDE):
        raise InvalidConfig(f"{mark}size is {text}, but may be from 1 to {MAX_SIDE} pixels a side", field="size")
    return height, width


def _share(name: str, text: str, mark: str, most: float) -> float:
    """Return a share as a number, written 0.2 or 20%; raises `InvalidConfig`."""
    written, option = text.strip(), f"{mark}{name.replace('_', '-') if mark else name}"
    try:
        share = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= most:
        raise InvalidConfig(
            f"{option} is {quote(written)}, but must be a share from 0 to {most:g}, such as 0.2 or 20%",
            field=name.replace("_", "-") if mark else name,
        )
    return share
