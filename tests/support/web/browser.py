"""A headless Chromium.

With PREFLIGHT_AXE=axe.min.js (of axe-core) every picture is also checked for accessibility, WCAG 2.2 A and AA.
"""

import base64
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from support.worker.services import wait_until
from training.artifacts.model_dir import REPORT

FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run", "--lang=en",
)  # fmt: skip
DESKTOP: Final = (1280, 800)
PHONE: Final = (320, 640)
VIEWS: Final = (("light", DESKTOP), ("dark", PHONE), ("dark", DESKTOP), ("light", PHONE))
"""Colour scheme and size of the screenshots: the first two, or all with PREFLIGHT_PICTURES."""


CHECK: Final = """
const done = arguments[0];
const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
axe.run(document, { runOnly: tags }).then(({ violations }) => done(
  violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 200)).join(" ")}`)));
"""
"""Script that returns the violations that axe-core finds."""


@dataclass(frozen=True, slots=True)
class Browser:
    """One page in the browser."""

    driver: Chrome
    pictures: Path
    every_view: bool

    def open(self, address: str) -> None:
        self.driver.get("about:blank")
        self.driver.get(address)

    def find(self, css: str) -> WebElement:
        """Wait for a visible element that `css` selects, and return it."""
        found: list[WebElement] = []

        def is_shown() -> bool:
            with suppress(StaleElementReferenceException):  # the page has drawn it again meanwhile
                elements = self.driver.find_elements(By.CSS_SELECTOR, css)
                found[:] = [one for one in elements if one.is_displayed()]
            return bool(found)

        wait_until(is_shown)
        return found[0]

    def text(self, css: str = "body") -> str:
        """Return the visible text of the elements; empty where there are none."""
        texts = self.ask("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText).join('\\n')", css)
        return str(texts)

    def see(self, words: str, css: str = "body", seconds: float = 90) -> None:
        """Wait until an element shows this text."""
        deadline = time.monotonic() + seconds
        while words not in self.text(css):
            assert time.monotonic() < deadline, f"{words!r} is not in {self.text(css)!r}"
            time.sleep(0.1)  # each look has the browser lay out the page

    def click(self, css: str) -> None:
        """Click a visible element; again where the page has drawn it again meanwhile, as then nothing was clicked."""

        def is_clicked() -> bool:
            with suppress(StaleElementReferenceException):
                self.find(css).click()
                return True
            return False

        wait_until(is_clicked)

    def tick(self, name: str) -> None:
        """Tick the box of this name, wherever it is scrolled to."""
        self.find(f"[aria-label='{name}']")
        self.ask("document.querySelector(arguments[0]).click()", f"[aria-label='{name}']")

    def ask(self, script: str, *arguments: object) -> object:
        answer: object = self.driver.execute_script(script, *arguments)
        return answer

    def picture(self, name: str) -> None:
        """Save screenshots of the whole page, and check that it does not scroll sideways."""
        for colours, (width, height) in VIEWS if self.every_view else VIEWS[:2]:
            self.look(colours, width, height)
            wide = self.ask("return document.documentElement.scrollWidth")
            assert wide == width, f"{name} is {wide} pixels wide in a window of {width}"
            found = self.violations()
            assert not found, f"{name}, {colours}, {width} pixels: {found}"
            shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
            self.pictures.mkdir(parents=True, exist_ok=True)
            path = self.pictures / f"{name}-{colours}-{width}.png"
            path.write_bytes(base64.b64decode(shot["data"]))
        self.look("light", *DESKTOP)

    def violations(self) -> list[str]:
        """Return the violations that axe-core finds; none without it."""
        axe = os.environ.get("PREFLIGHT_AXE")
        if axe is None:
            return []
        self.ask(Path(axe).read_text())
        found: list[str] = self.driver.execute_async_script(CHECK)
        return found

    def open_report(self) -> str:
        """Press the button of a job's report, and return what its tab shows."""
        self.click(f"[aria-label='Open {REPORT}']")
        wait_until(lambda: len(self.driver.window_handles) == 2)
        self.driver.switch_to.window(self.driver.window_handles[1])
        self.see("on the test set")
        return self.text()

    def look(self, colours: str, width: int, height: int) -> None:
        """Set the size of the window and the colour scheme."""
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < height}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def complaints(self, *, besides: Sequence[str] = ()) -> list[str]:
        """Return the new messages of the console: errors, violations of the policy, warnings."""
        entries = self.driver.get_log("browser")
        return [str(entry["message"]) for entry in entries if entry["source"] not in besides]


@contextmanager
def open_browser(profile: Path, pictures: Path, *, every_view: bool) -> Iterator[Browser]:
    """Yield a browser with an empty profile; skips where Debian's `chromium` and `chromium-driver` are missing."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    options = ChromeOptions()
    options.binary_location = program
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = Chrome(options, ChromeService(driver))
    try:
        yield Browser(chrome, pictures, every_view)
    finally:
        chrome.quit()
