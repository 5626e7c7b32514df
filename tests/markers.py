"""Markers by what a test needs: `torch`, `redis`, `process`, `browser`, from imports, fixtures and called functions.

`-m "not torch and not process"` also leaves such modules out of the collection, which would import them.
"""

import ast
import functools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parent
ROOTS: Final = (TESTS, TESTS.parent, TESTS.parent / "client")
PACKAGES: Final = {"torch": {"torch", "torchvision", "sklearn"}, "browser": {"selenium"}}
"""Marker -> packages; a module that imports one of them, or a module of ours that does, has the marker."""
NAMES: Final = {
    "redis": {"redis_url", "server", "redis_server"}, "torch": {"digits_store"},
    "process": {"start_worker", "start_program", "start_terminal", "add_extras"},
}  # fmt: skip
"""Marker -> fixtures, and functions that a test calls."""
PROCESSES: Final = {"subprocess", "multiprocessing", "training.process.child", "calibration.measure.process_pool"}
"""Modules with which a test itself starts processes."""
started: list[str] = []
"""Programs that were started, where tests that start some are deselected."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; note each process that is started where tests that need one are deselected."""
    for name in ("torch", "redis", "process", "browser"):
        config.addinivalue_line("markers", f"{name}: needs it; set by tests/markers.py")
    config.addinivalue_line("markers", "sampled(n): all its cases but the first n are slow")
    if is_deselected(config, "process"):
        sys.addaudithook(lambda event, args: started.append(str(args[0])) if event == "subprocess.Popen" else None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules that are deselected as a whole."""
    if collection_path.suffix != ".py":
        return None
    if is_deselected(config, "process") and starts_processes(collection_path):
        return True
    return any(is_deselected(config, name) and needs(collection_path, name) for name in PACKAGES) or None


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Mark each test; by what it needs only where `-m` asks for that, because it takes seconds to find out."""
    cases = Counter[object]()
    asked = any(name in str(config.getoption("markexpr", "")) for name in ("torch", "redis", "process", "browser"))
    for item in items:
        if isinstance(item, pytest.Function) and (sampled := item.get_closest_marker("sampled")):
            if item.get_closest_marker("slow") is None:
                cases[item.function] += 1
            if cases[item.function] > sampled.args[0]:
                item.add_marker("slow")
        if not asked:
            continue
        names = set(getattr(item, "fixturenames", ()))
        if isinstance(item, pytest.Function):
            names |= set(item.function.__code__.co_names)
        wanted = {name for name in PACKAGES if needs(item.path, name)}
        wanted |= {name for name, those in NAMES.items() if names & those}
        if starts_processes(item.path):
            wanted.add("process")
        for name in sorted(wanted):
            item.add_marker(name)


@pytest.fixture(scope="session", autouse=True)
def without_what_is_deselected(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hold that tests without the marker `torch` do not import it, and those without `process` start none of ours."""
    yield
    assert not is_deselected(request.config, "torch") or "torch" not in sys.modules
    assert not [path for path in started if Path(path).name == "redis-server" or path == sys.executable]


def is_deselected(config: pytest.Config, marker: str) -> bool:
    """Return whether `-m` leaves out tests with the marker."""
    return f"not {marker}" in str(config.getoption("markexpr", ""))


@functools.cache
def starts_processes(path: Path) -> bool:
    """Return whether a test module itself starts processes."""
    return bool(PROCESSES & set(imports(path, inside=True)))


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
