"""Anchors of Markdown pages."""

import re
from pathlib import Path

ANCHOR = re.compile(r'<a id="([^"]+)">')
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the names that a link may have behind `#`: explicit anchors, and headings as GitHub spells them."""
    text = page.read_text()
    headings = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}
    return headings | set(ANCHOR.findall(text))
