"""Models with names, in a real browser: a job's model is put into production, tried, trained further, rolled back."""

import json
from pathlib import Path

import numpy as np
import pytest
from redis import Redis
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from support.files.named_models import finish_job
from support.files.photographs import photograph
from support.web.browser import Browser
from support.web.service import Service
from support.worker.services import StartWorker, digits_job, wait_for

from preflight import Client
from training.artifacts.model_dir import MANIFEST
from worker.config.settings import Settings


def test_a_model_is_used_rolled_back_and_removed(
    browser: Browser, service: Service, settings: Settings, raw: Redis
) -> None:
    for seed, job in enumerate(("mnist-cnn", "mnist-cnn-2")):
        finish_job(raw, settings.artifact_dir, job, seed)
    browser.open(f"{service.url}/#/models")
    browser.see("No model has a name yet")
    browser.picture("models-none")
    promote(browser, service, "mnist-cnn", "The first one")
    browser.see("The first one", ".models")
    assert "Roll back" not in browser.text(".actions")
    promote(browser, service, "mnist-cnn-2", "<b>Better</b>")
    browser.see("<b>Better</b>", ".models")
    browser.picture("model")
    press(browser, "Roll back…")
    browser.see("will be the model of job mnist-cnn again", "dialog")
    browser.click("dialog button[type=submit]")
    browser.see("in use\tmnist-cnn\t", "[aria-label='History of production'] tbody tr:first-child")
    (settings.artifact_dir / "~models" / "damaged.json").write_text("{")
    browser.click(".back a")
    browser.see("The file of alias 'damaged' is damaged", ".models")
    browser.picture("models")
    browser.click(".models a[href='#/models/production']")
    press(browser, "Remove…")
    browser.see("The jobs and their models stay.", "dialog")
    browser.click("dialog button[type=submit]")
    browser.see("Models", "h1")
    assert "production" not in browser.text(".models")
    assert browser.complaints() == []


def test_a_model_of_photographs_offers_no_pad(
    browser: Browser, service: Service, settings: Settings, raw: Redis, tmp_path: Path
) -> None:
    """On the page of its job and on that of its alias; what is dropped or chosen is shown, and read."""
    finish_job(raw, settings.artifact_dir, "photographs", 0)
    manifest = settings.artifact_dir / "photographs" / MANIFEST
    body = json.loads(manifest.read_text())
    body["input"]["shape"] = [3, 96, 96]
    manifest.write_text(json.dumps(body))
    promote(browser, service, "photographs", "Colour")
    for address in (f"{service.url}/#/models/production", f"{service.url}/#/jobs/photographs"):
        browser.open(address)
        browser.see("Choose a picture.", ".try")
        assert not browser.ask("return document.querySelector('.try canvas').checkVisibility()")
    (tmp_path / "photograph.jpg").write_bytes(photograph(np.full((28, 28), 255, np.uint8), 3))
    browser.driver.find_element(By.CSS_SELECTOR, ".try input[type=file]").send_keys(str(tmp_path / "photograph.jpg"))
    browser.find(".try canvas:not(.pad)")
    assert browser.complaints() == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_from_a_first_model_to_the_next_one_and_back(
    browser: Browser, service: Service, client: Client, start_worker: StartWorker, tmp_path: Path
) -> None:
    """On the page alone: trained, used, drawn and photographed digits read, trained further, used, rolled back."""
    start_worker()
    client.enqueue(digits_job(job_id="warm-up"))
    wait_for(client, "warm-up", "finished")
    browser.open(f"{service.url}/#/new?dataset=digits")
    first = train(browser)
    use(browser, "The first model")
    canvas = browser.find(".try canvas")
    browser.ask("arguments[0].scrollIntoView()", canvas)
    pen = ActionChains(browser.driver, duration=30).move_to_element_with_offset(canvas, -50, -70).click_and_hold()
    pen.move_by_offset(100, 0).move_by_offset(-60, 150).release().perform()
    browser.see("%)", ".try .lead")
    browser.see("What the network sees", ".try")
    browser.click(".try .buttons button")
    one = np.zeros((28, 28), np.uint8)
    one[4:24, 12:16] = 255
    (tmp_path / "photograph.jpg").write_bytes(photograph(one, 3))
    browser.driver.find_element(By.CSS_SELECTOR, ".try input[type=file]").send_keys(str(tmp_path / "photograph.jpg"))
    browser.see("%)", ".try .lead")
    browser.picture("model-photograph")
    browser.click(".actions a")
    second = train(browser)
    assert second != first
    assert browser.ask("return document.body.innerText.includes('production')")
    use(browser, "Trained further")
    browser.see(f"in use\t{second}\t", ".models tbody tr:first-child")
    press(browser, "Roll back…")
    browser.click("dialog button[type=submit]")
    browser.see(f"in use\t{first}\t", ".models tbody tr:first-child")
    assert client.result(second) is not None
    assert browser.complaints() == []


def train(browser: Browser) -> str:
    """Send the form as it is, wait until the job has finished, and return its id."""
    browser.see("Trains", ".summary")
    browser.click("form button[type=submit]")
    browser.see("test accuracy", ".outcome")
    return str(browser.ask("return location.hash")).rpartition("/")[2]


def promote(browser: Browser, service: Service, job: str, why: str) -> None:
    browser.open(f"{service.url}/#/jobs/{job}")
    use(browser, why)


def use(browser: Browser, why: str) -> None:
    """Put the model of the job that is shown into production."""
    browser.see("Use as production…", ".actions")
    press(browser, "Use as production…")
    browser.find("#promote-why").send_keys(why)
    browser.picture("models-promote")
    browser.click("dialog button[type=submit]")
    browser.see("production", "h1")


def press(browser: Browser, words: str) -> None:
    """Click the button that reads so."""
    browser.see(words, ".actions")
    script = "[...document.querySelectorAll('.actions button')].find((one) => one.innerText === arguments[0]).click()"
    browser.ask(script, words)
