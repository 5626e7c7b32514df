"""The view of imported data in a real browser: a file is chosen, imported by a worker, looked at and removed."""

import shutil
from pathlib import Path

from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from support.files.pictures import imported, save_tree
from support.web.browser import Browser
from support.web.service import Service
from support.worker.services import StartWorker, wait_until

from training.catalog.catalog import Catalog
from worker.config.settings import Settings

MARKUP = "<b>x</b>"


def test_a_file_is_imported_looked_at_and_removed(
    browser: Browser, service: Service, settings: Settings, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Names of files and classes are text; a data set can be trained on; what was refused says why."""
    browser.open(f"{service.url}/#/data")
    browser.see("No data set was imported yet")
    browser.picture("data-none")
    source = save_tree(tmp_path / "photos", 20, ("<i>disc", "square", "cross"))
    archive = shutil.make_archive(str(tmp_path / f"My {MARKUP.replace('/', '')} Photos"), "zip", source)
    choose(browser, archive)
    assert browser.find("#upload-name").get_attribute("value") == "my-b-x-b-photos"
    browser.find("#upload-name").clear()
    browser.find("#upload-name").send_keys("photos")
    browser.picture("data-chosen")
    browser.click(".upload button[type=submit]")
    browser.see("Waits for a worker", ".imports")
    browser.picture("data-waiting")
    start_worker()
    browser.see("photos@1 is ready: 60 samples", ".imports")
    browser.see("60 samples, 3 classes", ".datasets")
    browser.picture("data-ready")
    (tmp_path / "bad.csv").write_text("<script>,1\n2,3\n")
    choose(browser, str(tmp_path / "bad.csv"))
    browser.click(".upload button[type=submit]")
    browser.see("bad from bad.csv", ".imports")
    browser.see("bad.csv is nothing that is imported", ".imports .bad")
    browser.picture("data-refused")
    browser.open(f"{service.url}/#/data/photos")
    browser.see("<i>disc", ".classes")
    browser.see("No job has used it")
    drawn = "return [...document.querySelectorAll('.samples canvas')].filter((one) => one.style.width).length"
    wait_until(lambda: browser.ask(drawn) == 1, 20)
    browser.picture("data-set")
    browser.click(".actions a.button")
    browser.see("Start a job", "h1")
    assert browser.find("[name=dataset]").get_attribute("value") == "photos"
    browser.open(f"{service.url}/#/data/photos")
    wait_until(lambda: browser.ask(drawn) == 1, 20)
    browser.find(".samples canvas").send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    browser.see("What is it?", "dialog")
    Select(browser.find("#new-class")).select_by_value("cross")
    browser.picture("data-relabel")
    browser.click("dialog button[type=submit]")
    browser.see("Save 1 change as a new version")
    browser.click(".samples ~ .buttons button")
    browser.see("2 versions", ".datasets")
    assert Catalog(settings.data_dir).find("photos").report["revised"] is not None
    browser.open(f"{service.url}/#/data/photos")
    browser.see("1 given another class")
    browser.see("Remove photos@2", ".actions")
    browser.click(".actions button")
    browser.see("cannot be brought back", "dialog")
    browser.picture("data-remove")
    browser.click("dialog button[type=submit]")
    browser.see("1 version;", ".datasets")
    assert Catalog(settings.data_dir).numbers("photos") == [1]
    # The form asks before a worker has said that it has the new data set, and is refused.
    assert browser.complaints(besides=("network",)) == []


def test_a_card_of_many_classes_is_small(
    browser: Browser, service: Service, settings: Settings, tmp_path: Path
) -> None:
    """200 classes and some duplicates: the card is far below 300 KB, with the first page of samples."""
    source = save_tree(tmp_path / "photos", 3, [f"class {number:03}" for number in range(200)])
    imported(settings.data_dir, source, "photos", keep_duplicates=True)
    card = service.ask("GET", "/v1/datasets/photos")
    sample = service.ask("GET", "/v1/datasets/photos/samples?label=0")
    assert len(card.body) + len(sample.body) < 100_000
    browser.open(f"{service.url}/#/data/photos")
    browser.see("Show 170 more classes")
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, ".classes li")) == 30
    browser.picture("data-many")


def choose(browser: Browser, path: str) -> None:
    """Choose a file, as its dialog does."""
    (file,) = browser.driver.find_elements(By.CSS_SELECTOR, ".drop input[type=file]")
    file.send_keys(path)
    browser.see(Path(path).name, ".drop")
