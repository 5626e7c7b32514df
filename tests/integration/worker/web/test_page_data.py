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
from training.importing.issues import Issue, Issues
from training.importing.revision import revise
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
    browser.click(".drop button[type=submit]")
    browser.see("Waits for a worker", ".imports")
    browser.picture("data-waiting")
    start_worker()
    browser.see("photos@1 is ready: 60 samples", ".imports")
    browser.see("60 samples, 3 classes", ".datasets")
    browser.picture("data-ready")
    (tmp_path / "bad.csv").write_text("<script>,1\n2,3\n")
    choose(browser, str(tmp_path / "bad.csv"))
    browser.click(".drop button[type=submit]")
    browser.see("bad from bad.csv", ".imports")
    browser.see("bad.csv is nothing that is imported", ".imports .bad")
    browser.picture("data-refused")
    browser.open(f"{service.url}/#/data/photos")
    browser.see("<i>disc", ".classes")
    browser.see("No job has used it")
    browser.find(".sample")
    browser.picture("data-set")
    browser.click(".actions a.button")
    browser.see("Start a job", "h1")
    assert browser.find("[name=dataset]").get_attribute("value") == "photos"
    browser.open(f"{service.url}/#/data/photos")
    browser.find(".sample").send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    browser.see("What is it?", "dialog")
    Select(browser.find("#new-class")).select_by_value("cross")
    browser.picture("data-relabel")
    browser.click("dialog button[type=submit]")
    browser.see("Save 1 change as a new version")
    browser.find("#changed-by").send_keys("Ada")
    browser.click(".changes button")
    browser.see("photos@2 is ready", ".imports")
    browser.see("2 versions", ".datasets")
    revised = Catalog(settings.data_dir).find("photos").report["revised"]
    assert isinstance(revised, dict)
    assert revised["by"] == "Ada"
    browser.open(f"{service.url}/#/data/photos")
    browser.see("1 given another class")
    browser.see("labels changed by Ada")
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
    colour = save_tree(tmp_path / "colour", 30, side=64, mode="RGB")
    imported(settings.data_dir, colour, "colour", keep_duplicates=True)
    browser.open(f"{service.url}/#/data/colour")
    browser.find(".samples .page + .page .sample")
    assert browser.ask("return document.querySelectorAll('.sample').length") == 30


def test_wrong_labels_duplicates_and_a_deleted_sample(
    browser: Browser, service: Service, settings: Settings, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Suspicious samples move by a click, a second tab is refused, duplicates have pages, and a sample is deleted."""
    names = ("<i>disc", "square", "cross")
    source = save_tree(tmp_path / "photos", 30, names)
    for number in range(25):
        shutil.copy(source / "square" / f"{number}.png", source / "square" / f"copy {number}.png")
    version = imported(settings.data_dir, source, "photos", keep_duplicates=True)
    catalog = Catalog(settings.data_dir)
    issues = [Issue(sample=each, given=names[0], suggested=names[1], own=0.01, probability=0.98) for each in range(70)]
    found = Issues(
        dataset="photos@1", samples=version.samples, estimated=7, accuracy=0.9, seconds=1.0,
        at="2026-11-29T10:00:00+00:00", issues=tuple(issues),
    )  # fmt: skip
    browser.open(f"{service.url}/#/data/photos")
    browser.see("Look for wrong labels")
    browser.click(".issue-head button")
    browser.see("with two idle processors", "dialog")
    browser.picture("data-issues-cost")
    browser.click("dialog .quiet")
    catalog.issues(version.sha256).write_text(found.model_dump_json())
    browser.open(f"{service.url}/#/data/photos")
    browser.see("7 of 115 labels look wrong")
    drawn = "return [...document.querySelectorAll('.issues canvas')].filter((one) => one.width === 28).length"
    wait_until(lambda: browser.ask(drawn) == 60, 20)
    browser.see("Show 60 more")
    browser.see("25 pairs, 1 to 20")
    browser.tick("Next equal pictures")
    browser.see("25 pairs, 21 to 25")
    browser.tick("Move to square: sample 3")
    browser.tick("Leave out: sample 4")
    browser.see("Save 2 changes as a new version")
    browser.picture("data-issues")
    revise(catalog, "photos@1", {0: "cross"}, "Bob")
    browser.click(".changes button")
    browser.see("is not the newest version any more; look at photos@2, which Bob made at", ".bad")
    browser.picture("data-second-tab")
    start_worker()
    browser.open(f"{service.url}/#/data/photos")
    browser.find(".sample").send_keys(Keys.ARROW_RIGHT, Keys.ENTER)
    browser.see("What is it?", "dialog")
    browser.click("dialog label ~ button")
    browser.see("It leaves all of them", "dialog")
    browser.picture("data-erase")
    browser.click("dialog .danger")
    browser.see("Deleted from photos@1, photos@2", ".imports")
    assert [each.samples for each in catalog.versions()] == [114, 114]
    assert browser.complaints(besides=("network",)) == []


def choose(browser: Browser, path: str) -> None:
    """Choose a file, as its dialog does."""
    (file,) = browser.driver.find_elements(By.CSS_SELECTOR, ".drop input[type=file]")
    file.send_keys(path)
    browser.see(Path(path).name, ".drop")
