"""What a finished job leaves, in a real browser: its files, and its model on the test set."""

import base64
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from support.redis.fences import everything
from support.web.browser import Browser
from support.web.pages import Page
from support.web.service import TOKEN, Service, serving
from support.worker.services import RunWorker, digits_job, wait_for, wait_until

from preflight import Client
from training.artifacts.evaluation import EVALUATION, MAX_ERRORS
from training.artifacts.metrics import Mistake, evaluation_metrics
from training.artifacts.model_dir import MANIFEST, MODEL, REPORT
from training.artifacts.predictions import PREDICTIONS, read
from training.data.dataset_store import read_test_images
from worker.config.settings import Settings
from worker.jobs.local.predict import ImagePrediction, predict_local

PIXELS = """
return [...document.querySelectorAll(".errors img")].map((image) => {
  const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  return [...context.getImageData(0, 0, canvas.width, canvas.height).data].filter((_, index) => index % 4 === 0);
});
"""
"""Returns the red of each pixel of the pictured errors."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a finished job has left, files and keys: it is trained once for all tests."""

    artifacts: Path
    copy: Path
    keys: dict[bytes | str, bytes | None] = field(default_factory=dict)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("artifacts"), tmp_path_factory.mktemp("copy") / "done")


@pytest.fixture
def settings(settings: Settings, trained: Trained) -> Settings:
    """The usual ones, but for the place of the model, which the job's keys name."""
    return settings.model_copy(update={"artifact_dir": trained.artifacts})


@pytest.fixture
def model(client: Client, raw: Redis, run_worker: RunWorker, trained: Trained) -> Path:
    """The model of a finished job."""
    place = trained.artifacts / "done"
    if not trained.keys:
        client.enqueue(digits_job(job_id="done", epochs=3))
        run_worker(environment={"PREFLIGHT_REPORT": "auto"})
        assert wait_for(client, "done").status == "finished"
        shutil.copytree(place, trained.copy)
        trained.keys.update(everything(raw))
        return place
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(trained.copy, place)
    for key, dump in trained.keys.items():
        raw.restore(key, 0, dump or b"")
    return place


def downloaded(directory: Path, name: str) -> bytes:
    wait_until(lambda: (directory / name).is_file())
    return (directory / name).read_bytes()


def pixels_of(mistakes: Sequence[Mistake], settings: Settings) -> list[list[int]]:
    """Return the grey values of the data set's images."""
    store = settings.cache_dir / "datasets" / "digits.safetensors"
    return [image.flatten().tolist() for image in read_test_images(store, [one.sample for one in mistakes])]


@pytest.mark.slow
def test_a_finished_job_is_taken_home(
    browser: Browser, service: Service, model: Path, downloads: Path, settings: Settings
) -> None:
    """The report is opened, files are downloaded as they are; matrix and errors are those of the predictions."""
    browser.open(f"{service.url}/#/jobs/done")
    browser.see(MODEL, ".files")
    browser.see("samples are correct", ".details")
    browser.picture("details")
    assert browser.ask(
        "const place = document.querySelector('.confusion').parentElement;"
        "return place.scrollWidth === place.clientWidth"
    )  # ten classes fit
    for name in (MODEL, PREDICTIONS, MANIFEST):
        browser.click(f"[aria-label='Download {name}']")
        assert downloaded(downloads, name) == (model / name).read_bytes()
    found = evaluation_metrics(*read(model / PREDICTIONS))
    assert f"{found.right:,} of {found.samples:,} samples" in browser.text(".details")
    rows = browser.ask(
        "return [...document.querySelectorAll('.confusion tbody tr')]"
        ".map(row => [...row.querySelectorAll('td')].map(cell => Number(cell.textContent.replace('·', '0'))))"
    )
    assert rows == [list(row) for row in found.confusion]
    errors = browser.text(".errors strong").splitlines()
    assert errors == [f"{one.truth} taken for {one.predicted}" for one in found.mistakes[:MAX_ERRORS]]
    assert browser.ask(PIXELS) == pixels_of(found.mistakes[:MAX_ERRORS], settings)
    report = browser.open_report()
    assert report.index("Configuration") < report.index("Learning")
    assert Page((model / REPORT).read_text()).text
    assert browser.complaints() == []


@pytest.mark.slow
def test_files_with_a_token_that_changes_under_way(
    browser: Browser, settings: Settings, model: Path, downloads: Path, tmp_path: Path
) -> None:
    """The token is asked for again and is in no address; the report opens by a ticket."""
    with serving(settings, tmp_path, PREFLIGHT_API_TOKEN=TOKEN) as service:
        browser.open(f"{service.url}/#/jobs/done")
        browser.find("dialog input").send_keys(TOKEN, Keys.ENTER)
        browser.see(MODEL, ".files")
        port = service.port
    renewed = "another-token-of-letters"
    with serving(settings, tmp_path, port=port, PREFLIGHT_API_TOKEN=renewed):
        browser.tick(f"Download {MODEL}")  # the page may have asked for a token already, above the button
        browser.see("not accepted", "dialog")
        browser.find("dialog input").send_keys(renewed, Keys.ENTER)
        assert downloaded(downloads, MODEL) == (model / MODEL).read_bytes()
        assert "on the test set" in browser.open_report()
        assert renewed not in browser.driver.current_url
        assert browser.ask("return document.querySelectorAll('script').length") == 0
        assert browser.ask("return self.origin") == "null"
    browser.driver.switch_to.window(browser.driver.window_handles[0])
    browser.ask("sessionStorage.clear()")
    assert browser.complaints(besides=("network",)) == []


@pytest.mark.slow
def test_a_model_that_is_gone(browser: Browser, service: Service, model: Path) -> None:
    """While the page is open, and before: one sentence that says where the files were written."""
    browser.open(f"{service.url}/#/jobs/done")
    browser.see(MODEL, ".files")
    browser.see("samples are correct", ".details")
    asked = "return performance.getEntriesByType('resource').filter(one => one.name.endsWith('/files')).length"
    assert browser.ask(asked) == 1  # the job is drawn once its events are there: another list would come too late
    shutil.rmtree(model)
    browser.click(f"[aria-label='Download {MODEL}']")
    browser.see("This service found no file", ".details [role=alert]")
    browser.open(f"{service.url}/#/jobs/done")
    browser.see(str(model), ".details")
    assert browser.text(".files") == ""
    browser.picture("files-elsewhere")
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_report_of_50_mb_is_opened(browser: Browser, service: Service, model: Path) -> None:
    """It is sent in pieces, and shown like a small one."""
    (model / REPORT).write_bytes(b"<!doctype html><h1>99 % on the test set</h1><!--" + b"x" * (50 << 20) + b"-->")
    browser.open(f"{service.url}/#/jobs/done")
    browser.see("50.0 MiB", ".files")
    assert browser.open_report() == "99 % on the test set"
    assert browser.complaints() == []


@pytest.mark.slow
def test_markup_in_a_file_stays_text(browser: Browser, service: Service, model: Path, connection: Redis) -> None:
    """An evaluation that is none, one with markup in it, and a place with markup in its name."""
    script = "<script>document.title = 'owned'</script>"
    for content in (json.dumps({"a": script}), script):
        (model / EVALUATION).write_text(content)
        browser.open(f"{service.url}/#/jobs/done")
        browser.see("The evaluation cannot be read.", ".details")
    named = {"truth": script, "predicted": script, "sample": 1, "confidence": 1, "truth_confidence": 0, "png": '"><p>'}
    (model / EVALUATION).write_text(json.dumps({"samples": 1, "right": 0, "confusion": [[script]], "errors": [named]}))
    browser.click(".details [role=alert] + button")
    browser.see(f"{script} taken for {script}", ".errors")
    connection.hset("preflight:{done}:state", "artifact", script)
    shutil.rmtree(model)
    browser.open(f"{service.url}/#/jobs/done")
    browser.see(script, ".details")
    assert browser.ask("return document.querySelectorAll('main script').length") == 0
    assert browser.complaints(besides=("network",)) == []  # the picture is none


@pytest.mark.slow
def test_a_waiting_job_shows_its_configuration(browser: Browser, service: Service, client: Client) -> None:
    """Every setting before a worker has it: other values than the defaults, then the rest."""
    client.enqueue(digits_job(job_id="waits", epochs=7, seed=2**63 - 1))
    browser.open(f"{service.url}/#/")
    browser.see("small on digits", "tbody")
    browser.open(f"{service.url}/#/jobs/waits")
    browser.see("Configuration", ".details")
    browser.picture("configuration")
    assert browser.text("section > .config dd").splitlines() == [
        "digits", "small", "7", "32", "9223372036854775807", "no", "1",
    ]  # fmt: skip
    browser.click(".config + details summary")
    browser.see("learning rate\n0.005", ".config")
    assert "augmentation: random resized crop ratio\n1.333\n" in browser.text(".config")
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_digit_is_drawn_and_recognized(browser: Browser, service: Service, model: Path, tmp_path: Path) -> None:
    """With the probabilities of `preflight predict`; a chosen picture; what is none; a model that is gone."""
    browser.open(f"{service.url}/#/jobs/done")
    draw(browser)
    browser.see("%)", ".try")
    browser.picture("try-it")
    drawn = str(browser.ask("return document.querySelector('.try canvas').toDataURL()"))
    picture = tmp_path / "drawn.png"
    picture.write_bytes(base64.b64decode(drawn.partition(",")[2]))
    (expected,) = predict_local(model, [picture])
    assert isinstance(expected, ImagePrediction)
    shown = [float(value.partition("\u202f")[0]) for value in browser.text(".probabilities .n").splitlines()]
    assert shown == pytest.approx([100 * value for value in expected.probabilities], abs=0.02)
    assert f"{expected.label} (" in browser.text(".try")

    browser.click(".try .buttons button")
    assert browser.text(".probabilities") == ""
    chooser = browser.driver.find_element(By.CSS_SELECTOR, ".try input[type=file]")
    chooser.send_keys(str(picture))
    browser.see(f"{expected.label} (", ".try")
    hostile = tmp_path / "<img src=x onerror=alert(1)>.png"
    hostile.write_text("<script>alert(1)</script>")
    chooser.send_keys(str(hostile))
    browser.see(f"{hostile.name} is no picture", ".try [role=alert]")
    assert browser.ask("return document.querySelectorAll('.try img:not(.seen)').length") == 0
    assert browser.complaints() == []

    shutil.rmtree(model)
    draw(browser)
    browser.see("is not there", ".try [role=alert]")
    assert browser.complaints(besides=("network",)) == []


def draw(browser: Browser) -> None:
    """Draw a seven."""
    canvas = browser.find(".try canvas")
    browser.ask("arguments[0].scrollIntoView()", canvas)
    pen = ActionChains(browser.driver, duration=30).move_to_element_with_offset(canvas, -50, -70).click_and_hold()
    pen.move_by_offset(100, 0).move_by_offset(-60, 150).release().perform()
