"""The view of models with names, in a real browser: a job's model is put into production, and rolled back."""

from redis import Redis
from selenium.webdriver.common.by import By
from support.files.named_models import finish_job
from support.web.browser import Browser
from support.web.service import Service

from worker.config.settings import Settings


def test_a_model_is_used_and_rolled_back(browser: Browser, service: Service, settings: Settings, raw: Redis) -> None:
    for seed, job in enumerate(("mnist-cnn", "mnist-cnn-2")):
        finish_job(raw, settings.artifact_dir, job, seed)
    browser.open(f"{service.url}/#/models")
    browser.see("No model has a name yet")
    browser.picture("models-none")
    promote(browser, service, "mnist-cnn", "The first one")
    browser.see("The first one", ".models")
    assert not browser.driver.find_elements(By.CSS_SELECTOR, ".models button")
    promote(browser, service, "mnist-cnn-2", "<b>Better</b>")
    browser.see("<b>Better</b>", ".models")
    browser.picture("models")
    browser.click(".models button")
    browser.see("will be the model of job mnist-cnn again", "dialog")
    browser.click("dialog button[type=submit]")
    browser.see("in use\tmnist-cnn\t", ".models tbody tr:first-child")
    (settings.artifact_dir / "~models" / "damaged.json").write_text("{")
    browser.see("The file of alias 'damaged' is damaged", ".models")
    assert browser.complaints() == []


def promote(browser: Browser, service: Service, job: str, why: str) -> None:
    browser.open(f"{service.url}/#/jobs/{job}")
    browser.see("Use as production")
    (button,) = (
        one for one in browser.driver.find_elements(By.CSS_SELECTOR, ".actions button") if "Use as" in one.text
    )
    button.click()
    browser.find("#promote-why").send_keys(why)
    browser.picture("models-promote")
    browser.click("dialog button[type=submit]")
    browser.see("Models", "h1")
