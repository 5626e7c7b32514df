"""The form in a real browser: start, run again, retry; bad input, a newer service, an expired token, two tabs."""

import time
from pathlib import Path

import pytest
from redis import Redis
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from support.web.browser import Browser
from support.web.service import Service, serving
from support.worker.services import RunWorker, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from worker.config.settings import Settings

SCRIPT = "<script>document.title = 'owned'</script>"
TOKEN = "sesame-sesame-sesame"  # noqa: S105 - of this test
NEWER = """
const plain = window.fetch;
window.fetch = async (path, options) => {
  const answer = await plain(path, options);
  if (!path.endsWith("/openapi.json")) return answer;
  const schema = await answer.json();
  const job = schema.components.schemas.TrainJob;
  job.properties.lookahead = { type: "integer", minimum: 2, maximum: 9, default: 5, description: "a newer field" };
  job.properties.blend = { anyOf: [{ type: "array", items: { type: "object" } }, { type: "number" }], default: null };
  return new Response(JSON.stringify(schema));
};
"""
"""Lets the page see the schema of a newer service."""

TYPE_EVERYWHERE = """
const said = {};
for (const field of document.querySelectorAll("main input[type=text], main textarea")) {
  const before = field.value;
  field.value = arguments[0];
  if (field.name !== "calibration_knobs") document.querySelector("form.job-form button[type=submit]").click();
  said[field.name] = document.getElementById(`field-${field.name}-problem`).textContent;
  field.value = before;
}
return said;
"""
"""Enters a text in each field in turn, and returns what the form says of it."""


def enter(browser: Browser, name: str, text: str) -> None:
    field = browser.find(f"[name='{name}']")
    field.clear()
    field.send_keys(text)


def choose(browser: Browser, recipe: str) -> None:
    browser.ask("document.querySelector(arguments[0]).click()", f"[name='recipe'][value='{recipe}']")


def unfold(browser: Browser, group: str) -> None:
    """Open a group of settings, so that its fields can be reached."""
    groups = "[...document.querySelectorAll('form details')]"
    browser.ask(f"{groups}.find((one) => one.innerText.startsWith(arguments[0])).open = true", group)


def start(browser: Browser) -> None:
    browser.click("form button[type=submit]")


def test_a_job_is_started_and_run_again_with_one_change(
    browser: Browser, service: Service, client: Client, run_worker: RunWorker
) -> None:
    """Only what differs from the defaults is sent; the second form has the first job's request."""
    browser.open(service.url)
    browser.click(".list-head .button")
    browser.see("My own settings", "form")
    browser.see("How long it takes is not known yet", ".summary")
    browser.picture("form")
    enter(browser, "dataset", "digits")  # no worker has said what it has, so that names are entered
    choose(browser, "")
    enter(browser, "model", "cnn")
    unfold(browser, "Training")
    enter(browser, "batch_size", "32")
    enter(browser, "label_smoothing", "0.1")
    unfold(browser, "Start, name and repetition")
    enter(browser, "job_id", "first")
    unfold(browser, "Workers and speed")
    Select(browser.find("[name='calibrate']")).select_by_visible_text("no")
    browser.see("Batch size, Label smoothing", "details summary")
    browser.see("Trains cnn for 1 epoch on digits", ".summary")
    browser.picture("form-open")
    start(browser)
    browser.see("first", "h1")
    request = client.request("first")
    assert request == {
        "type": "preflight.train.v1", "job_id": "first", "dataset": "digits", "model": "cnn",
        "batch_size": 32, "calibrate": False, "label_smoothing": 0.1,
    }  # fmt: skip
    run_worker()
    browser.see("test accuracy", ".outcome")
    browser.click(".actions a")
    browser.see("The settings are those of first", "form")
    assert browser.find("[name='label_smoothing']").get_attribute("value") == "0.1"
    unfold(browser, "Training")
    enter(browser, "epochs", "2")
    browser.picture("run-again")
    start(browser)
    browser.see("Waiting in the queue", "main")
    again = browser.text("h1")
    assert again != "first"
    assert client.request(again) == {**request, "job_id": again, "epochs": 2}
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_seed_that_no_number_of_the_browser_holds(browser: Browser, service: Service, client: Client) -> None:
    """It is sent, filled in again, compared and copied digit by digit; one above its bound is refused."""
    client.enqueue(digits_job(job_id="long", seed=2**63 - 1, epoch_samples=640))
    browser.open(f"{service.url}/#/new?from=long")
    browser.see("The settings are those of long", "form")
    unfold(browser, "Start, name and repetition")
    assert browser.find("[name='seed']").get_attribute("value") == str(2**63 - 1)
    unfold(browser, "Samples")
    assert browser.find("[name='epoch_samples']").get_attribute("value") == "640"
    enter(browser, "seed", str(2**63))
    start(browser)
    browser.see("at least 0 and at most 9,223,372,036,854,775,807", "[id='field-seed-problem']")
    enter(browser, "seed", str(2**53 + 1))
    enter(browser, "job_id", "other")
    start(browser)
    browser.see("other", "h1")
    request = client.request("other")
    assert request is not None
    assert (request["seed"], request["epoch_samples"]) == (2**53 + 1, 640)
    browser.open(f"{service.url}/#/compare?job=long&job=other")
    browser.see(str(2**63 - 1), "main")
    browser.see(str(2**53 + 1), "main")
    assert browser.complaints() == []


def test_bad_input_is_one_sentence_at_its_field(browser: Browser, service: Service, client: Client) -> None:
    """Markup is text in every field, and nothing that was entered is lost."""
    client.enqueue(digits_job(job_id="taken"))
    browser.open(f"{service.url}/#/new")
    browser.see("More settings", "form")
    choose(browser, "")
    for group in ("Training", "Start, name and repetition"):
        unfold(browser, group)
    for name, text, sentence in (
        ("epochs", "0", 'epochs is "0", but must be a whole number, at least 1 and at most 10,000.'),
        ("learning_rate", "fast", "must be a number, more than 0 and at most 100"),
        ("model", SCRIPT, "but must match"), ("dataset", "", "dataset is missing"),
        ("job_id", SCRIPT, "but must match"), ("epochs", "1.5", "must be a whole number"),
    ):  # fmt: skip
        enter(browser, name, text)
        start(browser)
        browser.see(sentence, f"[id='field-{name}-problem']")
        assert browser.ask("return document.activeElement.name") == name
        enter(browser, name, "mnist" if name == "dataset" else "")
    said = browser.ask(TYPE_EVERYWHERE, SCRIPT)
    assert isinstance(said, dict)
    assert len(said) > 30
    assert {name for name, sentence in said.items() if not sentence} <= {"calibration_knobs"}  # the service refuses it
    assert browser.ask("return document.querySelectorAll('main script').length") == 0
    enter(browser, "job_id", "taken")
    start(browser)
    browser.see("job_id is taken, which is taken; choose another.", "main")
    browser.picture("form-problem")
    enter(browser, "job_id", "")
    choose(browser, "fast")
    assert browser.find("[name='batch_size']").get_attribute("disabled")
    assert client.ids() == ["taken"]
    assert browser.complaints(besides=("network",)) == []


def test_a_newer_service_has_fields_that_the_page_does_not_know(browser: Browser, service: Service) -> None:
    """They are drawn from their schema, what is of no known kind as JSON; the service judges the values."""
    browser.open(service.url)
    browser.see("No jobs yet")
    browser.ask(NEWER)
    browser.ask("location.hash = '#/new'")
    browser.see("More settings", "form")
    unfold(browser, "Others")
    browser.see("a newer field", "form")
    enter(browser, "blend", "[{")
    start(browser)
    browser.see("blend is not JSON", "form")
    enter(browser, "blend", "")
    enter(browser, "lookahead", "3")
    start(browser)  # this service is older than its schema says
    browser.see("lookahead", "[role=alert]")
    browser.see("is not a field", "form")
    assert browser.complaints(besides=("network",)) == []


def test_a_token_that_expires_loses_nothing_that_was_entered(
    browser: Browser, settings: Settings, client: Client, tmp_path: Path
) -> None:
    with serving(settings, tmp_path, PREFLIGHT_API_TOKEN=TOKEN) as service:
        browser.open(service.url)
        browser.find("dialog input").send_keys(TOKEN, Keys.ENTER)
        browser.see("No jobs yet")
        browser.ask("location.hash = '#/new'")
        browser.see("More settings", "form")
        enter(browser, "dataset", "digits")
        unfold(browser, "Start, name and repetition")
        enter(browser, "job_id", "kept")
        time.sleep(1.5)  # the form asks what the job would do, too: with the token that is right
        browser.ask("sessionStorage.setItem('preflight token', 'an-old-one-that-is-refused')")
        start(browser)
        browser.see("was not accepted", "dialog")
        browser.click("dialog button[type=button]")
        browser.see("token", "form > [role=alert]")
        assert browser.find("[name='job_id']").get_attribute("value") == "kept"
        start(browser)
        browser.find("dialog input").send_keys(TOKEN, Keys.ENTER)
        browser.see("kept", "h1")
        assert client.status("kept").status == "queued"
        browser.ask("sessionStorage.clear()")
    assert browser.complaints(besides=("network",)) == []


@pytest.mark.slow
def test_a_cancelled_job_is_retried_by_its_button(
    browser: Browser, service: Service, client: Client, start_worker: StartWorker, raw: Redis
) -> None:
    """It resumes from its checkpoint; of two tabs that cancel it, the second hears that it was cancelled."""
    client.enqueue(digits_job(job_id="mine", epochs=40))
    browser.open(f"{service.url}/#/jobs/mine")
    browser.click(".actions button")  # before the start: 40 epochs may end meanwhile
    browser.see("Cancel this job?", "dialog")
    start_worker(environment={"PREFLIGHT_CHECKPOINT_SECONDS": "0.2"})
    wait_until(lambda: "checkpoint_saved" in str(raw.xrange(keys.events("mine"))), seconds=90)
    client.cancel("mine")  # as another tab does
    assert wait_for(client, "mine").status == "cancelled"
    browser.click("dialog button[type=submit]")
    browser.see("only a queued or running job can be cancelled", "main")
    browser.see("Cancelled", ".outcome")
    browser.picture("retry")
    browser.click(".actions button:nth-child(2)")
    browser.see("It resumes from its checkpoint", "dialog")
    browser.click("dialog button[type=submit]")
    browser.see("Resumed from the checkpoint", ".events")
    wait_for(client, "mine", "finished")
    browser.see("test accuracy", ".outcome")
    assert client.status("mine").attempt == 2
    assert browser.complaints(besides=("network",)) == []


def test_a_read_only_page_offers_nothing(browser: Browser, settings: Settings, client: Client, tmp_path: Path) -> None:
    client.enqueue(digits_job(job_id="theirs"))
    with serving(settings, tmp_path, PREFLIGHT_WEB_READONLY="on") as service:
        browser.open(service.url)
        browser.see("theirs", "tbody")
        browser.tick("Select theirs")
        browser.see("1 job selected", ".selection")
        assert "Cancel" not in browser.text(".selection")
        assert "Start a job" not in browser.text("main")
        browser.open(f"{service.url}/#/jobs/theirs")
        browser.see("No worker listens to the queue", "main")
        assert "Cancel" not in browser.text(".job-head")
        browser.open(f"{service.url}/#/new")
        browser.see("This service is read-only", "main")
        browser.picture("read-only")
    assert browser.complaints() == []
