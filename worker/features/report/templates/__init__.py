"""Templates of the report: HTML by jinja2, every name escaped."""

import re
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from preflight import numbers

_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not allow: most control characters, and halves of surrogate pairs."""


def render_template(name: str, **context: object) -> str:
    """Return the page of a template in this module's folder."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_printable,
    )  # fmt: skip
    environment.filters["share"] = numbers.share
    return environment.get_template(name).render(context)


def _printable(value: object) -> object:
    return _UNPRINTABLE.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value
