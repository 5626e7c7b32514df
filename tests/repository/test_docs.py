"""The documentation points at what is there, and says what the code says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from training.errors import PreflightError
from worker.config import docs as settings_doc

ROOT = Path(__file__).parents[2]
ROOMS = ("worker", "calibration", "training")
FOUND = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md"), *ROOT.glob("tests/**/*.md")]
PAGES = sorted(page for page in FOUND if "node_modules" not in page.parts)
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
    there = {path.name for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert named - {"__init__.py"} == there - {"__init__.py"}


def test_the_settings_are_documented_as_they_are() -> None:
    """`make docs` writes the page; it was forgotten where this fails."""
    assert (ROOT / "docs" / "configuration.md").read_text() == settings_doc.page()


def test_the_runbook_has_every_reason() -> None:
    """Each reason under which a job or a process fails, in any room, and none that is gone."""
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    explained = re.findall(r"^### `(\w+)`$", runbook, re.MULTILINE)
    assert sorted(explained) == sorted({PreflightError.reason, *reasons()})


def reasons() -> Iterator[str]:
    """Yield what the classes of all rooms set as their `reason`."""
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Assign(targets=[ast.Name(id="reason")], value=ast.Constant(value=str(reason))):
                    yield reason


def test_the_readme_leads_to_every_page() -> None:
    """A page that nothing links to is not found."""
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in readme] == []
