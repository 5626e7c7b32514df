"""The documentation points at what is there, and says what the code says."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.web.markdown_pages import anchors

from preflight.errors import PreflightError
from worker.config import docs

ROOT = Path(__file__).parents[2]
ROOMS = ("client/preflight", "worker", "calibration", "training")
FOUND = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md"), *ROOT.glob("tests/**/*.md")]
PAGES = sorted(page for page in FOUND if "node_modules" not in page.parts)
LONGEST = {"README.md": 110, "docs/decisions.md": 200, "docs/benchmarks.md": 300}
"""Page -> lines; a new row takes the place of one that no longer decides anything."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


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


def test_the_settings_are_documented_as_they_are() -> None:
    """`make docs` writes the page; it was forgotten where this fails."""
    assert (ROOT / "docs" / "reference" / "configuration.md").read_text() == docs.page()


def test_every_row_on_rq_names_a_test() -> None:
    """Each row of the page's tables names a test, or a file of tests, that exists."""
    page = (ROOT / "docs" / "reference" / "rq.md").read_text()
    files = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    rows = [line.strip("|").split("|") for line in page.splitlines() if re.match(r"\| (?!part|feature|---)", line)]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(test_\w+)`|([\w/]*test_\w+\.py)", row[-1])
        assert named, row
        for function, path in named:
            assert any(
                f"def {function}(" in text if function else name.endswith(path) for name, text in files.items()
            ), row


def test_the_runbook_has_every_reason() -> None:
    """Each reason under which a job or a process fails, in any room, and none that is gone."""
    runbook = (ROOT / "docs" / "how-to" / "runbook.md").read_text()
    explained = re.findall(r"^### `(\w+)`$", runbook, re.MULTILINE)
    assert sorted(explained) == sorted({PreflightError.reason, *reasons()})


def reasons() -> Iterator[str]:
    """Yield what the classes of all rooms set as their `reason`."""
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Assign(targets=[ast.Name(id="reason")], value=ast.Constant(value=str(reason))):
                    yield reason


def test_the_index_leads_to_every_page() -> None:
    """A page that nothing links to is not found; README.md leads to the index."""
    assert "docs/README.md" in LINK.findall((ROOT / "README.md").read_text())
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    assert {page.resolve() for page in (ROOT / "docs").rglob("*.md")} - {index.resolve()} <= linked


def test_a_page_on_one_fault_table_is_linked_once() -> None:
    """README names the promises, and one page proves them."""
    assert [link for link in LINK.findall((ROOT / "README.md").read_text()) if "faults.md" in link] == [
        "docs/faults.md"
    ]


def test_the_pages_that_grow_stay_short() -> None:
    """A new decision takes the place of one that no longer decides anything."""
    for page, most in LONGEST.items():
        assert len((ROOT / page).read_text().splitlines()) <= most, page


def test_the_tables_are_those_of_the_results() -> None:
    """`make figures` writes them from tools/bench/results/; it was forgotten where this fails."""
    command = [sys.executable, "-m", "tools.bench.figures", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("page", ["test_documented_commands.py", "test_rq_versions.py"])
def test_tests_named_by_other_tests_exist(page: str) -> None:
    """The acceptance tests run or cite tests by name."""
    names = set(re.findall(r'(?:::|[,(]\s*")(test_\w+)"', (ROOT / "tests" / "acceptance" / page).read_text()))
    defined = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert names
    assert names <= defined
