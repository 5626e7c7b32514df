"""Fixtures of the page's tests: a browser and a service."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.web.browser import Browser, open_browser
from support.web.service import Service, service_of
from worker.config.settings import Settings


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests, whose start takes as long as one; each has another service, and so another origin."""
    asked = os.environ.get("PREFLIGHT_PICTURES")
    pictures = Path(asked) if asked else tmp_path_factory.mktemp("pictures")
    with open_browser(tmp_path_factory.mktemp("profile"), pictures, every_view=asked is not None) as opened:
        yield opened
    print(f"\npictures of the page: {pictures}")


@pytest.fixture
def browser(window: Browser) -> Iterator[Browser]:
    """The browser at a blank page, with an empty console; its further tabs are closed afterwards."""
    window.driver.get("about:blank")
    window.complaints()
    yield window
    first, *others = window.driver.window_handles
    for other in others:
        window.driver.switch_to.window(other)
        window.driver.close()
    window.driver.switch_to.window(first)
    window.driver.get("about:blank")  # else it keeps asking a service that has ended


@pytest.fixture
def downloads(browser: Browser, tmp_path: Path) -> Path:
    """The directory to which the browser downloads."""
    path = tmp_path / "downloads"
    behaviour = {"behavior": "allow", "downloadPath": str(path)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    return path


@pytest.fixture
def service(settings: Settings, tmp_path: Path) -> Iterator[Service]:
    """A running web service, which a test may kill."""
    started = service_of(settings, tmp_path)
    started.start()
    yield started
    started.kill()
