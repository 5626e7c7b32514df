"""A first visit: what somebody who knows neither the service nor its documents does and finds in a browser.

Ten questions, each answered by what is on the first screen or on one that a link of it leads to.
"""

import time

import pytest
from support.web.browser import Browser
from support.web.service import Service
from support.worker.services import StartWorker, digits_job, wait_for, wait_until

from preflight import Client

WITHIN = 30.0
"""Seconds from the form to a finished job: clicks, reading by script, and a recipe `fast` that takes some 3 s."""


@pytest.mark.timeout(240)
def test_a_first_model_in_thirty_seconds_and_ten_questions(
    browser: Browser, service: Service, client: Client, start_worker: StartWorker
) -> None:
    """From the address alone: two clicks to a trained model; then what a new user asks."""
    worker = start_worker()
    client.enqueue(digits_job(job_id="warm-up"))  # the data set is prepared, as after an earlier job of anybody
    wait_for(client, "warm-up", "finished")
    browser.open(service.url)
    # 1. What is this, and is it running? 2. How do I begin?
    browser.see("Workers", ".glance")
    browser.see("idle", ".workers")
    browser.see("Start a job", ".list-head")
    began = time.monotonic()
    browser.click(".list-head .button")
    browser.see("My own settings", "form")
    # 3. On which data can I train? 4. What do the presets reach, and how long do they take?
    names = browser.ask("return [...document.querySelector('[name=dataset]').options].map((one) => one.value)")
    assert isinstance(names, list)
    assert {"mnist", "digits", "fashion-mnist"} <= {*names}
    for words in ("fast", "99.2", "balanced", "99.5", "best", "99.7", "on MNIST"):
        browser.see(words, ".recipes")
    browser.ask("const one = document.querySelector('[name=dataset]'); one.value = 'digits';"
                "one.dispatchEvent(new Event('change', { bubbles: true }))")  # fmt: skip
    # 5. What will happen when I press the button?
    browser.see("Trains the recipe fast on digits (1,500 training images, 10 classes).", ".summary")
    browser.see("It starts at once.", ".summary")
    browser.picture("first-form")
    browser.click("form button[type=submit]")
    # 6. Is it getting on? 7. How good is it?
    browser.see("test accuracy", ".outcome")
    took = time.monotonic() - began
    assert took < WITHIN, worker.output()
    browser.picture("first-result")
    # 8. Does it work on my own picture? 9. How do I use the model elsewhere?
    browser.see("Draw with mouse, pen or finger", ".try")
    browser.see("model.safetensors", ".files")
    browser.see("Use as production", ".actions")
    # 10. What did it get wrong? And again, otherwise?
    browser.see("Confusion matrix", ".details")
    browser.see("Run again with", ".actions")
    browser.see("Copy link", ".actions")
    # The next one is told how long it takes.
    browser.ask("location.hash = '#/new?dataset=digits'")
    browser.see("such job took", ".summary")
    wait_until(lambda: "here; about" in browser.text(".recipes"))
    browser.picture("second-form")
    assert browser.complaints() == []
