"""The page in a real browser, with a real server and worker; screenshots of every state.

With PREFLIGHT_PICTURES=folder each state is pictured in light and dark, on a phone and on a desk, and kept there.
"""

import statistics
from pathlib import Path

import pytest
from redis import Redis
from rq.suspension import resume, suspend
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.web.browser import Browser
from support.web.service import Service, serving
from support.worker.event_publisher import EventPublisher
from support.worker.services import StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis.keys import alias, events
from preflight.redis.keys import state as state_key
from preflight.wire import Progress
from tools.faults.machines import RedisServer
from worker.config.settings import Settings

SCRIPT = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
WATCH = """
window.steps = [];
new MutationObserver(() => {
  const found = document.querySelector(".where")?.textContent.match(/Epoch (\\d+) of \\d+, step (\\d+)/);
  if (found) window.steps.push([Number(found[1]), Number(found[2])]);
}).observe(document, { subtree: true, childList: true, characterData: true });
"""
"""Records which steps the page showed."""


def test_a_job_is_watched_from_an_empty_queue_to_its_result(
    browser: Browser, service: Service, client: Client, start_worker: StartWorker
) -> None:
    """Empty, queued, running with moving curves, finished; the next job is cancelled by its button."""
    browser.open(service.url)
    browser.see("No jobs yet")
    assert f"curl {service.url}/v1/jobs" in browser.text("pre")
    browser.picture("empty")

    client.enqueue(digits_job(job_id="watched", epochs=5))
    client.enqueue(digits_job(job_id="unwanted", epochs=10_000))
    browser.see("queued", "tbody")
    browser.open(f"{service.url}/#/jobs/watched")
    browser.see("Waiting in the queue")
    browser.picture("queued")
    browser.ask(WATCH)
    start_worker()
    browser.see("running", ".about")
    browser.see("Epoch ", ".where")
    browser.see("Trains with 1 thread", ".panel")
    browser.see("test accuracy", ".outcome")
    state, result = wait_for(client, "watched"), client.result("watched")
    assert result is not None
    assert result.test_accuracy is not None
    assert f"{result.test_accuracy:.2%}".removesuffix("%") in browser.text(".outcome")
    assert state.artifact is not None
    assert state.artifact in browser.text(".outcome")
    browser.see("Test loss", ".outcome")
    browser.picture("finished")
    assert_steps_in_order(browser, client)

    browser.open(f"{service.url}/#/jobs/unwanted")
    browser.see("Epoch ", ".where")
    wait_until(lambda: _drawn(browser) != "")
    before = _drawn(browser)
    wait_until(lambda: _drawn(browser) != before)
    browser.picture("running")
    browser.click(".job-head button")
    browser.see("Cancel this job?", "dialog")
    browser.picture("cancel")
    browser.click("dialog button[type=button]")
    assert client.status("unwanted").status == "running"
    browser.click(".job-head button")
    browser.click("dialog button[type=submit]")
    assert wait_for(client, "unwanted").status == "cancelled"
    browser.see("Cancelled", ".outcome")
    browser.picture("cancelled")
    browser.open(service.url)
    browser.see("idle", ".workers")
    browser.see("2 in queue", ".list-head")
    browser.ask("document.querySelector('tbody a').focus()")
    ActionChains(browser.driver).send_keys(Keys.ARROW_DOWN).perform()
    assert browser.ask("return document.activeElement.textContent") == "watched"
    browser.picture("jobs")
    assert browser.complaints() == []


def _drawn(browser: Browser) -> str:
    """Return the first chart as an image; empty where there is none."""
    return str(browser.ask("return document.querySelector('.chart canvas')?.toDataURL() ?? ''"))


def assert_steps_in_order(browser: Browser, client: Client) -> None:
    """Assert that the page showed steps of the job, in their order."""
    shown = browser.ask("return window.steps")
    assert isinstance(shown, list)
    assert shown
    assert shown == sorted(shown)
    published = [[event.epoch, event.step] for event in client.events("watched") if isinstance(event, Progress)]
    assert all(step in published for step in shown)


def test_untrusted_text_stays_text(browser: Browser, service: Service, connection: Redis) -> None:
    """Markup in any free field is shown as text; a second attempt continues the curve after a mark."""
    first = EventPublisher(connection, "hostile")
    first.start(worker=SCRIPT)
    first.calibrate(note=SCRIPT)
    first.train(1, 2)
    first.say("checkpoint_saved", epochs_done=2, steps_done=0, seconds=0.01, bytes=1 << 20)
    first.say("warning", message=SCRIPT)
    second = EventPublisher(connection, "hostile", attempt=2)
    second.start()
    second.say("job_resumed", epochs_done=1, steps_done=200)
    second.say("plan_adapted", field="threads", before=2, after=1, reason=SCRIPT)
    second.train(2, 3)
    browser.open(f"{service.url}/#/jobs/hostile")
    browser.see("attempt 2", ".about")
    browser.see("Epoch 3 of 4, step 400", ".where")
    for place in (".events", ".forest"):
        browser.see(SCRIPT, place)
    assert "Trains with 1 thread" in browser.text(".panel")
    assert browser.ask("return document.querySelectorAll('main script, main img').length") == 0
    browser.picture("second-attempt")
    assert browser.ask("return document.title") == "running · hostile - preflight"

    second.fail(reason="child_failed", message=f"the training child said {SCRIPT}", field=SCRIPT)
    browser.see(SCRIPT, ".outcome")
    browser.see("Failed: child failed", ".outcome")
    browser.click(".advice summary")
    browser.see("ended without a result", ".advice")
    browser.picture("failed")
    browser.open(f"{service.url}/#/?status=failed")
    browser.see("child failed", "tbody")
    browser.open(f"{service.url}/#/?status=finished")
    browser.see("No job is finished")
    assert browser.complaints() == []
    browser.open(f"{service.url}/#/jobs/%3Cscript%3E")
    browser.see("There is no such job")
    browser.picture("unknown")
    assert browser.complaints(besides=("network",)) == []


def test_a_series_has_a_bounded_number_of_points(browser: Browser, service: Service) -> None:
    """100,000 points become at most 2,000, in order; discarded ones are kept apart."""
    browser.open(service.url)
    script = """
    const done = arguments[0];
    import("/page/lib/series.js").then(({ Series }) => {
      const series = new Series();
      for (let at = 1; at <= 100_000; at++) series.add(at / 1000, [at]);
      const whole = series.line(0);
      series.rewind(50);
      series.add(50.5, [0]);
      done([...whole, series.line(0)[0], series.line(0, { discarded: true })[0]]);
    });
    """
    found = browser.driver.execute_async_script(script)
    assert isinstance(found, list)
    xs, ys, kept, lost = found
    assert 1000 <= len(xs) <= 2000
    assert (xs, ys) == (sorted(xs), sorted(ys))
    assert max(xs) == 100
    assert statistics.fmean(ys) == pytest.approx(50_000, rel=0.01)
    assert max(kept) == 50.5
    assert 50 < min(lost) < max(lost) <= 100.1


def test_the_page_reconnects(browser: Browser, service: Service, connection: Redis) -> None:
    """The server is killed and started: the page reports it, keeps its content, and shows every event once."""
    publisher = EventPublisher(connection, "patient")
    publisher.start()
    publisher.calibrate()
    publisher.train(1, 1)
    publisher.say("warning", message="the first one")
    browser.open(f"{service.url}/#/jobs/patient")
    browser.see("Warning: the first one", ".events")
    service.kill()
    browser.see("The service does not answer", "#connection")
    assert "Epoch 1 of 4" in browser.text(".where")
    browser.picture("disconnected")
    publisher.say("warning", message="while nobody listened")
    service.start()
    browser.see("Warning: while nobody listened", ".events")
    wait_until(lambda: browser.text("#connection") == "")
    assert browser.text(".events").count("the first one") == 1
    assert browser.text(".forest").count("tcmalloc") == 2  # a trial, and the confirmation
    publisher.train(2, 2)
    browser.see("Epoch 2 of 4", ".where")
    assert browser.complaints(besides=("network",)) == []


@pytest.mark.slow
def test_unreadable_events_are_reported(browser: Browser, service: Service, connection: Redis) -> None:
    """A key of another type: one sentence, until it is a stream again."""
    publisher = EventPublisher(connection, "spoiled")
    publisher.start()
    browser.open(f"{service.url}/#/jobs/spoiled")
    browser.see("Attempt 1 started", ".events")
    connection.set(events("spoiled"), 1)
    browser.see("is no stream", "#connection")
    connection.delete(events("spoiled"))
    publisher.train(1, 1)
    browser.see("Epoch 1 of 4", ".where")
    wait_until(lambda: browser.text("#connection") == "")
    assert browser.complaints(besides=("network",)) == []


def test_a_redis_outage_is_reported(browser: Browser, settings: Settings, server: RedisServer, tmp_path: Path) -> None:
    with serving(settings.model_copy(update={"redis_url": server.url}), tmp_path) as service:
        browser.open(service.url)
        browser.see("No jobs yet")
        server.kill()
        browser.see("Redis", "#connection")
        assert "No jobs yet" in browser.text("main")
        browser.picture("redis-away")
        browser.open(service.url)
        browser.see("Loading jobs", "main")
        browser.picture("loading")
    assert browser.complaints(besides=("network",)) == []


@pytest.mark.slow
def test_a_suspension_is_shown(browser: Browser, service: Service, connection: Redis) -> None:
    browser.open(service.url)
    browser.see("No worker listens", ".glance")
    suspend(connection)
    browser.see("Workers are suspended and take no job; rq resume ends it.", ".glance .banner")
    browser.picture("suspended")
    resume(connection)
    wait_until(lambda: "suspended" not in browser.text(".glance"))
    assert browser.complaints() == []


def test_a_token_is_kept_in_the_tab(browser: Browser, settings: Settings, connection: Redis, tmp_path: Path) -> None:
    """A wrong one is refused, the right one opens the page; it is in no address and no other storage."""
    token = "sesame-sesame-sesame"  # noqa: S105 - of this test
    EventPublisher(connection, "secret").start()
    with serving(settings, tmp_path, PREFLIGHT_API_TOKEN=token) as service:
        browser.open(service.url)
        browser.see("A token is needed", "dialog")
        browser.picture("token")
        ActionChains(browser.driver).send_keys(Keys.ESCAPE).perform()
        browser.see("This service is locked")
        browser.picture("locked")
        browser.click("main button")
        browser.find("dialog input").send_keys("wrong", Keys.ENTER)
        browser.see("not accepted", "dialog")
        browser.find("dialog input").send_keys(token, Keys.ENTER)
        browser.see("secret", "tbody")
        # Without a mouse: to the job, and into it.
        browser.ask("document.querySelector('tbody .tick').focus()")
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        assert browser.ask("return document.activeElement.textContent") == "secret"
        ActionChains(browser.driver).send_keys(Keys.ENTER).perform()
        browser.see("Attempt 1 started", ".events")
        assert browser.ask("return document.activeElement.tagName") == "H1"
        kept = browser.ask("return [location.href, document.cookie, JSON.stringify(localStorage)].join()")
        assert token not in str(kept)
        assert browser.ask("return Object.values(sessionStorage)") == [token]
        browser.ask("sessionStorage.clear()")
    assert browser.complaints(besides=("network",)) == []


def test_an_address_with_rqs_id_leads_to_the_job(browser: Browser, service: Service, raw: Redis) -> None:
    EventPublisher(raw, "mine").start()
    raw.set(alias("theirs"), "mine")
    raw.hset(state_key("mine"), "rq_id", "theirs")
    raw.hset("rq:job:theirs", "status", "started")
    browser.open(f"{service.url}/#/jobs/theirs")
    browser.see("RQ id theirs")
    assert browser.text("h1") == "mine"
    assert browser.driver.current_url.endswith("#/jobs/mine")
    assert browser.complaints() == []


OLDER = """
for (const [owner, names] of [
  [Promise, ["withResolvers", "try"]], [Array, ["fromAsync"]], [JSON, ["rawJSON", "isRawJSON"]], [Map, ["groupBy"]],
  [Object, ["groupBy"]], [AbortSignal, ["any"]], [URL, ["canParse", "parse"]], [crypto, ["randomUUID"]],
  [Array.prototype, ["toSorted", "toReversed", "toSpliced", "with"]], [window, ["Iterator", "scheduler"]],
  [Set.prototype, ["union", "intersection", "difference", "isSubsetOf"]], [Document.prototype, ["startViewTransition"]],
  [Object.getPrototypeOf(Object.getPrototypeOf([].values())), ["map", "filter", "take", "toArray", "some", "find"]],
]) for (const name of names) delete owner[name];
const parse = JSON.parse;
JSON.parse = (text, reviver) => parse(text, reviver && ((name, value) => reviver(name, value)));
"""
"""Takes away what the oldest browsers that the page is for do not have."""


def test_the_oldest_browsers(browser: Browser, service: Service, client: Client, raw: Redis) -> None:
    """List, a running job, another one run again: all is there, and a large seed stays exact."""
    script = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": OLDER})
    try:
        EventPublisher(raw, "live").start()
        client.enqueue(digits_job(job_id="waits", seed=2**63 - 1))
        browser.open(service.url)
        browser.see("live", "tbody")
        assert browser.ask("return Promise.withResolvers") is None
        browser.open(f"{service.url}/#/jobs/live")
        browser.see("Attempt 1 started", ".events")
        browser.open(f"{service.url}/#/new?from=waits")
        assert browser.find("[name='seed']").get_attribute("value") == str(2**63 - 1)
        browser.ask("document.querySelector('[name=job_id]').value = 'again'")
        browser.click("form button[type=submit]")
        browser.see("Waiting in the queue", "main")
        request = client.request("again")
        assert request is not None
        assert request["seed"] == 2**63 - 1
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    assert browser.complaints() == []
