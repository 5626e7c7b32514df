"""What people do with a run on the page: tag it, note something, delete it, share it, go by keyboard."""

from pathlib import Path

import pytest
from redis import Redis
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.files.named_models import finish_job
from support.web.browser import Browser
from support.web.service import Service, serving
from support.worker.event_publisher import EventPublisher
from support.worker.services import StartWorker, wait_until

from preflight import Client
from worker.config.settings import Settings

SCRIPT = "<script>document.title='owned'</script>"


@pytest.fixture
def finished(raw: Redis, connection: Redis, settings: Settings) -> str:
    """A finished job with a model."""
    publisher = EventPublisher(connection, "mine")
    publisher.start()
    publisher.train(1, 4)
    publisher.say("training_done", test_accuracy=0.97, test_loss=0.1, epochs=4, best_epoch=4, stopped_early=False,
                  train_seconds=2.0, samples_per_s=9000.0, measured_epoch_s=0.5, artifact="a",
                  model_sha256="0" * 64)  # fmt: skip
    finish_job(raw, settings.artifact_dir, "mine", 0)
    raw.zrem("rq:wip:preflight", "mine")
    raw.zadd("rq:finished:preflight", {"mine": 4e9})
    return "mine"


def test_a_run_is_tagged_noted_and_deleted(
    browser: Browser, service: Service, finished: str, client: Client, settings: Settings, start_worker: StartWorker
) -> None:
    """Tags lead to the jobs that have them; markup is text; after the deletion the list is shown without it."""
    browser.open(f"{service.url}/#/jobs/{finished}")
    field = browser.find("[aria-label='Add a tag']")
    field.send_keys("base, <b>bold</b>", Keys.ENTER)
    browser.see("<b>bold</b>", ".tags")
    browser.click(".tag-row > button")
    browser.find("[aria-label='Note']").send_keys(f"Two lines\n{SCRIPT}")
    browser.click(".editing button[type=submit]")
    browser.see(SCRIPT, ".written")
    assert client.notes(finished).tags == ("base", "<b>bold</b>")
    browser.picture("run-noted")
    browser.find("[aria-label='Add a tag']").send_keys("x" * 40, Keys.ENTER)
    browser.see("x" * 40, ".tags")
    browser.click(f"[aria-label='Remove the tag {'x' * 40}']")
    wait_until(lambda: client.notes(finished).tags == ("base", "<b>bold</b>"))
    browser.click(".tags a")
    browser.see("base", "tbody .tags")
    assert browser.ask("return document.querySelector('#search').value") == "tag=base"
    browser.picture("jobs-tagged")
    browser.click("tbody a")
    browser.see("Delete…", ".actions")
    press(browser, "Delete…")
    browser.see("its id is not trained again", "dialog")
    browser.picture("run-delete")
    browser.click("dialog button[type=submit]")
    browser.see("Being deleted…", ".actions")
    start_worker()
    browser.see("Jobs", "h1")
    wait_until(lambda: not (settings.artifact_dir / finished).exists())
    assert browser.ask("return document.title") != "owned"
    assert browser.complaints(besides=("network",)) == []


def press(browser: Browser, words: str) -> None:
    """Click the button that reads so."""
    script = "[...document.querySelectorAll('.actions button')].find((one) => one.innerText === arguments[0]).click()"
    browser.ask(script, words)


@pytest.mark.slow
def test_a_read_only_page_shows_notes_and_offers_nothing(
    browser: Browser, settings: Settings, finished: str, client: Client, tmp_path: Path
) -> None:
    client.annotate(finished, note="seen", tags=["base"])
    with serving(settings, tmp_path, PREFLIGHT_WEB_READONLY="on") as service:
        browser.open(f"{service.url}/#/jobs/{finished}")
        browser.see("seen", ".written")
        assert "Delete" not in browser.text(".actions")
        assert browser.ask("return document.querySelectorAll('.adding:not([hidden]), .tags button').length") == 0
    assert browser.complaints() == []


def test_an_address_previews_leads_to_the_run_and_names_its_state(
    browser: Browser, service: Service, settings: Settings, finished: str, connection: Redis, tmp_path: Path
) -> None:
    """Title and description for whoever shows a preview; with a token only the id. The tab's icon is the state's."""
    page = service.ask("GET", f"/jobs/{finished}")
    assert 'property="og:title" content="mine: finished, 97.00% test accuracy"' in page.body.decode()
    assert 'property="og:description" content="cnn on mnist, finished"' in page.body.decode()
    odd = service.ask("GET", "/jobs/%3Cscript%3Ex").body.decode()
    assert "<script" not in odd
    assert "&lt;script&gt;x" in odd
    browser.open(f"{service.url}/jobs/{finished}")
    browser.see("97.00", ".outcome")
    assert str(browser.ask("return location.hash")) == f"#/jobs/{finished}"
    icon = "return document.querySelector('link[rel=icon]').getAttribute('href')"
    assert browser.ask(icon) == "page/icon-finished.svg"
    EventPublisher(connection, "runs").start()
    browser.ask("location.hash = '#/jobs/runs'")
    browser.see("Notify me when it ends", ".course")
    assert browser.ask(icon) == "page/icon-running.svg"
    browser.ask("location.hash = '#/'")
    browser.see("Jobs", "h1")
    assert browser.ask(icon) == "page/icon.svg"
    assert browser.complaints() == []
    token = "a-token-of-enough-letters"  # noqa: S105 - it opens nothing
    with serving(settings, tmp_path, PREFLIGHT_API_TOKEN=token) as closed:
        told = closed.ask("GET", f"/jobs/{finished}").body.decode()
        assert "Job mine" in told
        assert "97" not in told


def test_the_page_is_used_by_keys(browser: Browser, service: Service) -> None:
    """A map of them under `?`; none of them acts while something is entered."""
    browser.open(service.url)
    browser.see("No jobs yet")
    keyed(browser, "?")
    browser.see("Search the jobs", "dialog")
    browser.picture("keys")
    keyed(browser, Keys.ESCAPE)
    wait_until(lambda: browser.ask("return document.querySelector('dialog')") is None)
    keyed(browser, "n")
    browser.see("Start a job", "h1")
    keyed(browser, "m")
    browser.see("Models", "h1")
    keyed(browser, "/")
    wait_until(lambda: browser.ask("return document.activeElement.id") == "search")
    keyed(browser, "n")
    assert browser.ask("return document.querySelector('#search').value") == "n"
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_browser_that_stores_nothing(browser: Browser, settings: Settings, finished: str, tmp_path: Path) -> None:
    """Without cookies and storage the token is asked for once, and kept while the page is open."""
    token = "a-token-of-enough-letters"  # noqa: S105 - it opens nothing
    off = (
        "Object.defineProperty(window, 'sessionStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    added = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": off})
    try:
        with serving(settings, tmp_path, PREFLIGHT_API_TOKEN=token) as service:
            browser.open(service.url)
            browser.find("dialog input").send_keys(token, Keys.ENTER)
            browser.see(finished, "tbody")
            browser.click("tbody a")
            browser.see("97.00", ".outcome")
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    assert browser.complaints(besides=("network",)) == []


def keyed(browser: Browser, key: str) -> None:
    ActionChains(browser.driver).send_keys(key).perform()


def test_a_loss_that_explodes_keeps_its_chart(browser: Browser, service: Service, connection: Redis) -> None:
    """1e26 on a logarithmic scale has a few lines, not hundreds; the job's links lead to others like it."""
    run = EventPublisher(connection, "explodes")
    run.start()
    for step in range(1, 40):
        run.say(
            "progress", epoch=1, epochs=4, step=step, steps=400, loss=10.0 ** (step * 0.66), accuracy=0.1,
            samples_per_s=9000.0, eta_s=1.0, used_memory_mb=300,
        )  # fmt: skip
    browser.open(f"{service.url}/#/jobs/explodes")
    browser.see("Epoch 1 of 4", ".where")
    wait_until(lambda: bool(browser.ask("return document.querySelector('.chart canvas')")))
    browser.picture("loss-explodes")
    browser.see("of 4.00\u202fGiB", ".figures")
    browser.click(".about a")
    browser.see("explodes", "tbody")
    assert str(browser.ask("return document.querySelector('#search').value")).startswith("model:")
    assert browser.complaints() == []
