"""Rules that neither ruff nor mypy holds: types without escapes, YAML without surprises, pages whose paths exist."""

import ast
import re
import subprocess
from collections.abc import Hashable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MAX_COLUMNS = 125
SILENCED = re.compile(r"#\s*(type:\s*ignore|pyright:|mypy:)")


def tracked(*patterns: str) -> list[str]:
    """Return the files of the repository that match."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in listed if (ROOT / path).exists()]


def test_types_have_no_escapes() -> None:
    """No `Any`, no `cast`, and no comment that silences a type checker, with a code or without."""
    found = []
    for path in tracked("*.py"):
        source = (ROOT / path).read_text()
        found += [f"{path}: {match[0]}" for match in SILENCED.finditer(source)]
        if re.search(r"\b(Any|cast)\b", source):
            found += [f"{path}: {name}" for name in escapes(ast.parse(source))]
    assert found == []


def escapes(tree: ast.Module) -> list[str]:
    """Return the names by which a module leaves the types."""
    nodes = list(ast.walk(tree))
    modules = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith("typing")]
    imported = [alias.name for node in modules for alias in node.names if alias.name in ("Any", "cast")]
    return imported + [node.attr for node in nodes if isinstance(node, ast.Attribute) and node.attr == "Any"]


WALL_CLOCK = {
    "calibration/cache/gauge_history.py", "calibration/cache/plan_cache.py", "calibration/cache/trial_log.py",
    "training/loop/progress.py", "client/preflight/files/journal.py",
}  # fmt: skip
"""Modules that read the system clock: for the moment of a record, never for a duration."""


def test_durations_do_not_come_from_the_system_clock() -> None:
    """It can be set while something is measured; `time.perf_counter` and `time.monotonic` cannot."""
    reads = re.compile(r"\btime\.time\(|\bfrom time import .*\btime\b")
    found = {
        path
        for path in tracked("calibration/*.py", "training/*.py", "client/preflight/files/*.py")
        if reads.search((ROOT / path).read_text())
    }
    assert found == WALL_CLOCK


PATH = re.compile(
    r"(?<![\w./-])((?:client|preflight|worker|training|calibration|tests|bench|docs|deploy)/[\w./-]*[\w/])"
)


@pytest.mark.parametrize("page", [one for one in tracked("*.md") if one not in ("CHANGELOG.md", "docs/decisions.md")])
def test_every_path_on_a_page_exists(page: str) -> None:
    """Files and folders of this repository, wherever a page names one."""
    named = set(PATH.findall((ROOT / page).read_text()))
    missing = {path for path in named if not (ROOT / path).exists()}
    assert missing <= {"deploy/prometheus/token"}  # written by its reader


class UniqueKeys(yaml.SafeLoader):
    """A loader that refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"line {node.start_mark.line + 1}: a key stands twice"
        return super().construct_mapping(node, deep)


@pytest.mark.parametrize("path", tracked("*.yml", "*.yaml"))
def test_yaml_is_tidy(path: str) -> None:
    """It parses, no key stands twice, no line is too long or ends with spaces, and no tab indents."""
    text = (ROOT / path).read_text()
    list(yaml.load_all(text, UniqueKeys))
    assert text.endswith("\n")
    untidy = [line for line in text.splitlines() if line != line.rstrip() or "\t" in line or len(line) > MAX_COLUMNS]
    assert untidy == []
