"""Markers by what a test needs: `torch`, `redis`, `process`, `browser`, from imports and fixtures.

`-m "not torch"` also leaves such modules out of the collection, which would import torch.
"""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent
ROOTS: Final = (TESTS, TESTS.parent)
PACKAGES: Final = {"torch": {"torch", "torchvision", "sklearn"}, "browser": {"selenium"}}
"""Marker -> packages; a module that imports one of them, or a module of ours that does, has the marker."""
FIXTURES: Final = {
    "redis": {"redis_url"}, "torch": {"digits_store"}, "process": {"start_worker", "start_program", "start_terminal"},
}  # fmt: skip
"""Marker -> fixtures."""
PROCESSES: Final = {"subprocess", "multiprocessing", "training.process.child", "calibration.measure.process_pool"}
"""Modules with which a test itself starts processes."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for name in ("torch", "redis", "process", "browser"):
        config.addinivalue_line("markers", f"{name}: needs it; set by tests/markers.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules that import torch where they are deselected anyway."""
    expression = str(config.getoption("markexpr", ""))
    deselected = [name for name in PACKAGES if f"not {name}" in expression]
    if collection_path.suffix == ".py" and any(needs(collection_path, name) for name in deselected):
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        wanted = {name for name in PACKAGES if needs(item.path, name)}
        wanted |= {name for name, those in FIXTURES.items() if fixtures & those}
        if PROCESSES & set(imports(item.path, inside=True)):
            wanted.add("process")
        for name in sorted(wanted):
            item.add_marker(name)


@pytest.fixture(scope="session", autouse=True)
def without_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold that tests without the marker `torch` do not import it."""
    yield
    assert "not torch" not in str(request.config.getoption("markexpr", "")) or "torch" not in sys.modules


@functools.cache
def needs(path: Path, marker: str) -> bool:
    """Return whether a module, or one that it imports from this repository, imports a package of the marker."""
    seen, waiting = set[Path](), [path]
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        seen.add(module)
        names = list(imports(module, inside=module == path))
        if any(name.partition(".")[0] in PACKAGES[marker] for name in names):
            return True
        waiting += [file for name in names for file in files(name)]
    return False


@functools.cache
def files(name: str) -> tuple[Path, ...]:
    """Return the file of a module of ours and those of its packages; `name` may end with an attribute."""
    parts = name.split(".")
    stems = [root.joinpath(*parts[:length]) for root in ROOTS for length in range(1, len(parts) + 1)]
    return tuple(file for stem in stems for file in (stem.with_suffix(".py"), stem / "__init__.py") if file.is_file())


@functools.cache
def imports(path: Path, *, inside: bool) -> tuple[str, ...]:
    """Return what a module imports when it is imported, and with `inside` what its functions import, too."""
    tree = ast.parse(path.read_text())
    return tuple(name for node in (ast.walk(tree) if inside else top_level(tree.body)) for name in imported(node))


def top_level(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield statements that run at import."""
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from top_level(node.body)


def imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules, or attributes of modules, that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
