"""The first visit of a new user: start a job, watch it, run it again with one change, compare, download, draw a digit.

Everything is done by clicks and keys in a real browser, and each step ends when the page shows its result. The data set
is the real MNIST where PREFLIGHT_DATA_DIR has it, else the built-in digits.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from selenium.webdriver.common.action_chains import ActionChains
from support.web.browser import Browser, open_browser
from support.worker.services import wait_until

from tools.bench.page.site import Site, running_site
from tools.bench.record import Record, judged, start

BOUND: Final = 300.0
MNIST_FILE: Final = "train-images-idx3-ubyte.gz"
DIGITS: Final = {"dataset": "digits", "recipe": "fast"}
MNIST: Final = {"dataset": "mnist", "recipe": "fast"}
MODEL: Final = "model.safetensors"
DRAWN: Final = 7
FILL: Final = """
const field = document.querySelector(arguments[0]);
field.value = arguments[1];
for (const type of ["input", "change"]) field.dispatchEvent(new Event(type, { bubbles: true }));
"""


@dataclass(slots=True)
class Visitor:
    """The user in front of the browser, and the table of the times."""

    browser: Browser
    site: Site
    record: Record
    total: float = 0.0

    def step(self, name: str, action: Callable[[], str]) -> None:
        """Do a step, and record its time and the text that the page then shows."""
        began = time.perf_counter()
        said = action().replace("\u202f", " ")
        took = time.perf_counter() - began
        self.total += took
        self.record.row(name, f"{took:.1f} s", said)

    def start_job(self, job_id: str, fields: Mapping[str, str]) -> str:
        """Fill in the open form, and watch the job until its end."""
        self.browser.see("My own settings", "form")
        for name, value in {**fields, "job_id": job_id}.items():
            self.browser.ask(FILL, f"[name='{name}']", value)  # a group of settings may be closed
        self.browser.click("form button[type=submit]")
        wait_until(lambda: self.browser.text(".outcome h2") != "", seconds=BOUND)
        if "test accuracy" not in self.browser.text(".outcome"):
            raise SystemExit(f"the job {job_id} was to finish, but the page says: {self.browser.text('.outcome')}")
        return self.browser.text(".outcome h2")

    def first_job(self, fields: Mapping[str, str]) -> str:
        """Start a job from the list."""
        self.browser.open(self.site.service.url)
        self.browser.click(".list-head .button")
        self.browser.see("My own settings", "form")
        self.browser.open(f"{self.site.service.url}/#/new?{urlencode(fields)}")
        return self.start_job("first", {})

    def run_again(self) -> str:
        """Run the job again with another seed."""
        self.browser.click(".actions a")
        return self.start_job("second", {"seed": "2"})

    def compare(self) -> str:
        """Tick both runs in the list, and compare them."""
        self.browser.click(".back a")
        for job_id in ("first", "second"):
            self.browser.tick(f"Select {job_id}")
        self.browser.click(".selection a")
        self.browser.see("seed", ".compare")
        wait_until(lambda: bool(self.browser.ask("return document.querySelectorAll('.compare canvas').length >= 2")))
        differing = self.browser.ask(
            "return [...document.querySelectorAll('[aria-label=Settings] tbody th')].map(one => one.textContent)"
        )
        return f"differs: {', '.join(map(str, differing)) if isinstance(differing, list) else differing}"

    def download(self) -> str:
        """Download the model of the second run."""
        folder = self.site.folder / "downloads"
        self.browser.driver.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)}
        )
        self.browser.click(".compare thead th:last-child a")
        self.browser.click(f"[aria-label='Download {MODEL}']")
        wait_until((folder / MODEL).is_file)
        return f"{(folder / MODEL).stat().st_size:,} bytes"

    def draw(self) -> str:
        """Draw a seven."""
        canvas = self.browser.find(".try canvas")
        self.browser.ask("arguments[0].scrollIntoView()", canvas)
        pen = ActionChains(self.browser.driver, duration=60).move_to_element_with_offset(canvas, -50, -70)
        pen.click_and_hold().move_by_offset(100, 0).move_by_offset(-60, 150).release().perform()
        self.browser.see("%)", ".try")
        return self.browser.text(".try .lead")


def measure(pictures: Path | None) -> None:
    """Print and write the table; pictures of the pages are kept in `pictures`."""
    has_mnist = (Path(os.environ.get("PREFLIGHT_DATA_DIR", "")) / MNIST_FILE).is_file()
    fields = MNIST if has_mnist else DIGITS
    record = start("first-visit", "python -m tools.bench.page first-visit", "reading and thinking")
    with running_site() as site, open_browser(
        site.folder / "profile", pictures or site.folder, every_view=False
    ) as browser:  # fmt: skip
        visitor = Visitor(browser, site, record)
        record.head(f"step, on {fields['dataset']}", "time", "the page says")
        visitor.step("start a job from the form, watch it to its end", lambda: visitor.first_job(fields))
        visitor.step("run it again with another seed", visitor.run_again)
        visitor.step("compare both", visitor.compare)
        visitor.step("download the model", visitor.download)
        visitor.step(f"draw a {DRAWN}", visitor.draw)
        record.row("in all", f"{visitor.total:.1f} s", f"bound {BOUND:g} s: {judged(visitor.total <= BOUND)}")
        if pictures is not None:
            browser.picture("first-visit")
    record.write()
