"""The service and its page behind a real nginx: below a path, with Basic auth, buffering, and HTTP/1.0."""

from pathlib import Path

import pytest
from redis import Redis
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from support.web.browser import Browser
from support.web.proxies import PASSWORD, USER, basic_auth, location, nginx
from support.web.service import TOKEN, serving
from support.worker.event_publisher import EventPublisher
from support.worker.services import RunWorker, digits_job, wait_for, wait_until

from preflight import Client
from training.artifacts.model_dir import MODEL
from worker.config.settings import Settings

KEPT_CONNECTIONS = 'proxy_http_version 1.1; proxy_set_header Connection "";'
PREFIX = "/tools/preflight"


@pytest.fixture
def model(client: Client, run_worker: RunWorker, settings: Settings) -> Path:
    """The model of a finished job."""
    client.enqueue(digits_job(job_id="done", epochs=2))
    run_worker(environment={"PREFLIGHT_REPORT": "auto"})
    assert wait_for(client, "done").status == "finished"
    return settings.artifact_dir / "done"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("directives", ["", KEPT_CONNECTIONS], ids=["HTTP/1.0", "HTTP/1.1"])
def test_events_come_at_once_through_a_buffering_proxy(
    settings: Settings, raw: Redis, tmp_path: Path, directives: str
) -> None:
    """nginx would hold back what is less than 4 KiB; the service's header tells it not to."""
    with (
        serving(settings, tmp_path) as service,
        nginx(tmp_path, location(service, directives=f"proxy_buffering on; gzip on; {directives}")) as front,
    ):
        assert front.enqueue("watched").status == 201
        publisher = EventPublisher(raw, "watched")
        publisher.start()
        with front.events("watched") as events:
            assert [next(events)[1] for _ in range(3)] == ["job_started", "resource_limits", "dataset_ready"]
            publisher.train(1, 1)
            assert next(events)[1] == "progress"
        assert [front.ask(method, "/readyz").status for method in ("GET", "HEAD")] == [200, 200]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("upstream_path", ["/", f"{PREFIX}/"], ids=["prefix taken off", "prefix left in"])
def test_the_page_below_a_path_and_behind_a_password(
    browser: Browser, settings: Settings, model: Path, raw: Redis, tmp_path: Path, downloads: Path, upstream_path: str
) -> None:
    """The browser sends nginx's password, the page its token: jobs, live events, files, report and pictures."""
    left_in = "" if upstream_path == "/" else PREFIX
    with (
        serving(settings, tmp_path, PREFLIGHT_API_TOKEN=TOKEN, PREFLIGHT_WEB_PREFIX=left_in) as service,
        nginx(tmp_path, location(service, f"{PREFIX}/", upstream_path, basic_auth(tmp_path))) as front,
    ):
        assert front.ask("GET", f"{PREFIX}/").status == 401  # nginx's
        browser.open(f"http://{USER}:{PASSWORD}@127.0.0.1:{front.port}{PREFIX}/")
        browser.find("dialog input").send_keys(TOKEN, Keys.ENTER)
        browser.see("done", "tbody")
        assert browser.ask("return location.pathname") == f"{PREFIX}/"
        EventPublisher(raw, "live").start()
        browser.driver.get(f"http://127.0.0.1:{front.port}{PREFIX}/#/jobs/live")
        browser.see("Attempt 1 started", ".events")
        EventPublisher(raw, "live", attempt=2).start()
        browser.see("Attempt 2 started", ".events")
        browser.driver.get(f"http://127.0.0.1:{front.port}{PREFIX}/#/jobs/done")
        browser.click(f"[aria-label='Download {MODEL}']")
        wait_until(lambda: (downloads / MODEL).is_file())
        assert (downloads / MODEL).read_bytes() == (model / MODEL).read_bytes()
        canvas = browser.find(".try canvas")
        browser.ask("arguments[0].scrollIntoView()", canvas)
        ActionChains(browser.driver).move_to_element(canvas).click_and_hold().move_by_offset(20, 40).release().perform()
        browser.find(".probabilities li")
        browser.open_report()
        browser.driver.switch_to.window(browser.driver.window_handles[0])
        browser.ask("sessionStorage.clear()")
    assert browser.complaints(besides=("network",)) == []
