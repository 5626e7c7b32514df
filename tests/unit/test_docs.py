"""The documentation points at what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
ANCHOR = re.compile(r'<a id="([^"]+)">')
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return what a link may name behind `#`: explicit anchors, and headings as GitHub spells them."""
    text = page.read_text()
    headings = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}
    return headings | set(ANCHOR.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """Each relative link names a file of the repository, and each anchor a heading or row in it."""
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_house_names_every_module() -> None:
    """README's list of files has each module of the three rooms, and none that is gone."""
    house = (ROOT / "README.md").read_text().partition("## The house")[2]
    named = set(re.findall(r"\b(\w+\.py)\b", house))
    there = {path.name for room in ("worker", "calibration", "training") for path in (ROOT / room).glob("*.py")}
    assert named - {"__init__.py"} == there - {"__init__.py"}
