"""Coverage of child processes, only in tests that have the marker `covers_children`: each start takes longer for it."""

import os
from collections.abc import Generator
from typing import Final

import pytest

VARIABLE: Final = "COVERAGE_PROCESS_CONFIG"
"""Variable that makes a Python process measure itself (`patch = subprocess` of coverage.py)."""
MARKER: Final = "covers_children"
SETTING: Final = pytest.StashKey[str | None]()


def pytest_configure(config: pytest.Config) -> None:
    """Take the variable out of the environment in the process that runs tests; xdist's workers still get it."""
    config.addinivalue_line("markers", f"{MARKER}: coverage is measured in its child processes, too")
    if not config.getoption("numprocesses", None):
        config.stash[SETTING] = os.environ.pop(VARIABLE, None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Put the variable back for the fixtures and the call of a test with the marker."""
    setting = item.config.stash[SETTING]
    if setting is None or item.get_closest_marker(MARKER) is None:
        return (yield)
    os.environ[VARIABLE] = setting
    try:
        return (yield)
    finally:
        del os.environ[VARIABLE]
