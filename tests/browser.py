"""A real browser without a window, and a real server for it to look at."""

import base64
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from services import wait_until

from worker.config.settings import Settings, service_environment

FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--hide-scrollbars", "--disable-dev-shm-usage", "--no-first-run", "--lang=en",
)  # fmt: skip
DESKTOP: Final = (1280, 800)
PHONE: Final = (320, 640)
VIEWS: Final = (("light", DESKTOP), ("dark", PHONE), ("dark", DESKTOP), ("light", PHONE))
"""Colours and sizes in which a page is pictured: the first two, or all where somebody has asked for pictures."""


@dataclass(slots=True)
class Server:
    """A real `preflight serve`, on a port that it keeps."""

    environment: dict[str, str]
    log: Path
    port: int = field(default_factory=lambda: free_port())
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "worker.cli", "serve", "--port", str(self.port)],
                env=self.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        wait_until(self._answers, seconds=90)

    def kill(self) -> None:
        """Kill it, without a word to anybody."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            with urllib.request.urlopen(f"{self.url}/healthz", timeout=1):  # noqa: S310 - our own address
                return True
        except OSError:
            return False


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def server_of(settings: Settings, log: Path, **environment: str) -> Server:
    """Return a server of these settings, not started."""
    return Server({**service_environment(settings), **environment}, log)


@dataclass(frozen=True, slots=True)
class Browser:
    """One page in a real browser."""

    driver: Chrome
    pictures: Path
    every_view: bool

    def open(self, address: str) -> None:
        """Load a page from scratch, with nothing kept from the one before."""
        self.driver.get("about:blank")
        self.driver.get(address)

    def find(self, css: str) -> WebElement:
        """Return the first element that is shown of those that `css` selects; waits for it."""
        found: list[WebElement] = []

        def shown() -> bool:
            found[:] = [
                element for element in self.driver.find_elements(By.CSS_SELECTOR, css) if element.is_displayed()
            ]
            return bool(found)

        wait_until(shown)
        return found[0]

    def text(self, css: str = "body") -> str:
        """Return the text that is shown of an element; empty where there is none."""
        texts = self.ask("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText).join('\\n')", css)
        return str(texts)

    def see(self, words: str, css: str = "body", seconds: float = 90) -> None:
        """Wait until an element shows these words."""
        deadline = time.monotonic() + seconds
        while words not in self.text(css):
            assert time.monotonic() < deadline, f"{words!r} is not in {self.text(css)!r}"
            time.sleep(0.1)  # each look has the browser lay out the page

    def click(self, css: str) -> None:
        """Click on an element as a mouse does."""
        self.find(css).click()

    def ask(self, script: str, *arguments: object) -> object:
        """Return what a script returns."""
        answer: object = self.driver.execute_script(script, *arguments)
        return answer

    def picture(self, name: str) -> None:
        """Keep pictures of the whole page, and see that nothing sticks out of it."""
        for colours, (width, height) in VIEWS if self.every_view else VIEWS[:2]:
            self.look(colours, width, height)
            wide = self.ask("return document.documentElement.scrollWidth")
            assert wide == width, f"{name} is {wide} pixels wide in a window of {width}"
            shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
            self.pictures.mkdir(parents=True, exist_ok=True)
            path = self.pictures / f"{name}-{colours}-{width}.png"
            path.write_bytes(base64.b64decode(shot["data"]))
        self.look("light", *DESKTOP)

    def look(self, colours: str, width: int, height: int) -> None:
        """Give the window a size, and the system light or dark colours."""
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < height}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def complaints(self, *, besides: Sequence[str] = ()) -> list[str]:
        """Return what the console has said since the last look: errors, violations of the policy, warnings."""
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
