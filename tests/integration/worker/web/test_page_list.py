"""The list in a real browser: search, order, pages, what is ticked, and whether a worker is there."""

import time

import pytest
from redis import Redis
from selenium.webdriver.common.keys import Keys
from support.redis.listed_jobs import fill
from support.web.browser import Browser
from support.web.service import Service
from support.worker.services import StartWorker, digits_job, wait_until

from preflight import Client
from preflight.redis import keys

SCRIPT = "<script>document.title = 'owned'</script>"


def rows(browser: Browser) -> list[str]:
    found = browser.ask("return [...document.querySelectorAll('tbody th a')].map(e => e.textContent)")
    assert isinstance(found, list)
    return found


def type_search(browser: Browser, text: str) -> None:
    field = browser.find("#search")
    field.clear()
    field.send_keys(text, Keys.ENTER)


def test_a_run_is_found_among_many(browser: Browser, service: Service, raw: Redis) -> None:
    """Search, order and page are in the address; numbers on the page agree with each other."""
    fill(raw, 320)
    needle = "job-of-interest"
    raw.hset(keys.rq_job(needle), mapping={"status": "finished", "created_at": "2026-01-01T00:00:00Z"})
    raw.zadd("rq:finished:preflight", {needle: time.time() + 86_400 * 8})
    raw.hset(keys.state(needle), mapping={
        "status": "finished", "dataset": "mnist", "model": "resnet18", "test_accuracy": 0.9971, "attempt": 1,
        "started_at": time.time() - 7200, "updated_at": time.time() - 60,
    })  # fmt: skip
    browser.open(service.url)
    browser.see("1 to 50 of 321 in queue preflight", ".list-head")
    waiting = browser.text(".count").split()[0]
    assert f"Queued{waiting}" in "".join(browser.text(".filters").split()).title().replace("queued", "Queued")
    assert len(rows(browser)) == 50
    browser.click(".pages button:nth-of-type(3)")
    browser.see("51 to 100 of 321", ".list-head")
    assert "page=2" in browser.driver.current_url
    browser.tick(f"Select {rows(browser)[0]}")
    assert "Cancel" not in browser.text(".selection")  # that job has ended
    browser.click(".selection .quiet")
    browser.click("th:nth-child(5) .sort")
    browser.see("1 to 50 of 321", ".list-head")
    wait_until(lambda: rows(browser)[0] == needle)
    assert browser.find("th:nth-child(5)").get_attribute("aria-sort") == "descending"
    type_search(browser, "model:resnet accuracy>99.5% took>1h")
    browser.see("1 in queue preflight", ".list-head")
    wait_until(lambda: rows(browser) == [needle])
    browser.picture("search")
    address = browser.driver.current_url
    browser.open(address)
    browser.see(needle, "tbody")
    assert browser.find("#search").get_attribute("value") == "model:resnet accuracy>99.5% took>1h"
    type_search(browser, "modle:cnn")
    browser.see("did you mean 'model'?", "#search-problem")
    browser.picture("search-problem")
    type_search(browser, SCRIPT)
    browser.see("No job matches", "main")
    assert browser.ask("return document.querySelectorAll('main script').length") == 0
    assert browser.complaints(besides=("network",)) == []


def test_ticked_jobs_are_cancelled_together(browser: Browser, service: Service, client: Client) -> None:
    """Those that another tab has cancelled meanwhile are named, and the others are cancelled."""
    for name in ("one", "two", "three"):
        client.enqueue(digits_job(job_id=name))
    browser.open(service.url)
    browser.see("2 before it", "tbody")
    browser.see("small on digits", "tbody")
    for name in ("one", "three"):
        browser.tick(f"Select {name}")
    browser.see("2 jobs selected", ".selection")
    browser.see("Cancel jobs", ".selection")
    browser.picture("ticked")
    browser.click(".selection button")
    browser.see("Cancel 2 jobs?", "dialog")
    browser.picture("cancel-many")
    client.cancel("one")  # as another tab does
    browser.click("dialog button[type=submit]")
    browser.see("1 job cancelled; job 'one' is cancelled", ".selection")
    assert [client.status(name).status for name in ("one", "two", "three")] == ["cancelled", "queued", "cancelled"]
    wait_until(lambda: browser.text(".count").startswith("1"))
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_queued_job_says_whether_a_worker_is_there(
    browser: Browser, service: Service, client: Client, start_worker: StartWorker
) -> None:
    client.enqueue(digits_job(job_id="first", epochs=10_000))
    client.enqueue(digits_job(job_id="waits"))
    browser.open(f"{service.url}/#/jobs/waits")
    browser.see("No worker listens to the queue preflight; preflight worker starts one.", "main")
    browser.picture("no-worker")
    start_worker()
    browser.see("This job is next in the queue; 1 worker, 1 busy.", "main")
    client.cancel("first")
    browser.see("test accuracy", ".outcome")
    assert "No worker" not in browser.text("main")
    assert browser.complaints() == []
