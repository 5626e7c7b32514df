"""The runbook, by reason: what a failure means, and what to do. The page shows it with a failed job."""

import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).parents[3] / "docs" / "how-to" / "runbook.md"
INSTALLED: Final = Path(sys.prefix) / "share" / "preflight" / "runbook.md"
"""Path at which a wheel installs the runbook."""
HEADING: Final = re.compile(r"^#{2,3} (?:`(\w+)`)?.*$", re.MULTILINE)
"""A heading; that of a reason begins with the reason in backquotes."""


@cache
def advice() -> Mapping[str, str]:
    """Return the text under the heading of each reason, as Markdown; nothing where the file is missing."""
    path = CHECKOUT if CHECKOUT.is_file() else INSTALLED
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8")
    headings = list(HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return {
        heading[1]: text[heading.end() : end].strip()
        for heading, end in zip(headings, ends, strict=True)
        if heading[1]
    }  # fmt: skip
