"""A comparison of five runs of 10,000 events, from its address until its curves are painted."""

import statistics
from typing import Final

from support.redis.long_runs import add_run
from support.web.browser import Browser, open_browser

from tools.bench.page.site import running_site
from tools.bench.record import judged, samples, start

RUNS: Final = 5
CHARTS: Final = 5
BOUND: Final = 1.0
DRAW: Final = """
const [address, charts, done] = arguments;
const begin = performance.now();
new MutationObserver((_, observer) => {
  if (document.querySelectorAll(".compare canvas").length < charts) return;
  observer.disconnect();
  const asked = performance.getEntriesByType("resource").findLast(({ name }) => name.includes("/v1/compare"));
  requestAnimationFrame(() => requestAnimationFrame(() =>
    done([performance.now() - begin, asked.duration, asked.encodedBodySize])));
}).observe(document.querySelector("main"), { subtree: true, childList: true });
location.hash = address;
"""
"""Opens the comparison from the list; returns milliseconds in all and of the request, and its bytes."""


def measure(rounds: int) -> None:
    """Print and write the table."""
    record = start("comparison", f"python -m tools.bench.page comparison --rounds {rounds}", "the start of the browser")
    with running_site() as site, open_browser(site.folder / "profile", site.folder, every_view=False) as browser:
        for number in range(1, RUNS + 1):
            add_run(site.redis, site.client, f"run-{number}", number, learning_rate=number / 1000)
        drawn = [draw(browser, site.service.url) for _ in range(rounds + 1)][1:]  # the first one compiles the scripts
    seconds, request, sent = zip(*drawn, strict=True)
    record.head(f"{RUNS} runs of 10,000 events, median (range) of {rounds}", "figure", "bound", "")
    reached = judged(statistics.median(seconds) <= 1e3 * BOUND)
    record.row("from the list until five charts are painted", samples(seconds, ".0f", " ms"), f"{BOUND:g} s", reached)
    record.row("of it, `GET /v1/compare`", samples(request, ".0f", " ms"), "", "")
    record.row("sent", samples([size / 1e3 for size in sent[:1]], ".0f", " KB"), "", "")
    record.write()


def draw(browser: Browser, url: str) -> tuple[float, float, float]:
    """Open the list, then the comparison; returns milliseconds in all and of the request, and its bytes."""
    browser.open(url)
    browser.see("run-1", "tbody")
    address = "#/compare?" + "&".join(f"job=run-{number}" for number in range(1, RUNS + 1))
    total, request, size = browser.driver.execute_async_script(DRAW, address, CHARTS)
    return float(total), float(request), float(size)
