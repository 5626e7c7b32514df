"""Own pictures, by somebody with a browser and no documents: from a zip that is dropped to a model trained again."""

import shutil
from pathlib import Path

import pytest
from PIL import ImageOps
from selenium.webdriver.remote.webelement import WebElement
from support.files.pictures import SHAPES, drawn
from support.web.browser import Browser
from support.web.service import Service
from support.worker.services import StartWorker

from training.catalog.catalog import Catalog
from worker.config.settings import Settings

CLASSES = (
    "apples", "Äpfel, grün", "<i>cups", "日本の茶碗", "keys & coins", "bottles of glass", "leaves", "stones", "x y", "z"
)  # fmt: skip
COLOURS = ("red", "lime", "blue")
EACH = 12
SUSPICIOUS = """
return [...document.querySelectorAll(".issues li")].slice(0, 5).find(({ innerText: text }) =>
  text.includes("In Äpfel, grün") && text.includes("looks like apples"))?.querySelector("button");
"""
"""The button that moves the sample with the wrong label, where that is among the first five."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dropped_zip_becomes_a_model_and_a_wrong_label_is_mended(
    browser: Browser, service: Service, settings: Settings, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Drop, train, read the confusion matrix, find a wrong label, move it by a click, train on the new version."""
    start_worker()
    browser.open(f"{service.url}/#/data")
    drop(browser, packed(tmp_path / "My Photos"))
    browser.see("My Photos.zip", ".drop")
    browser.click(".drop button[type=submit]")
    browser.see(f"my-photos@1 is ready: {EACH * len(CLASSES)} samples, 1 refused", ".imports")
    browser.click(".imports a.button")
    browser.see("Is text, no picture: apples/notes.png")
    train(browser)
    for name in CLASSES:
        browser.see(name, ".confusion")
    browser.picture("photographs-result")
    browser.open(f"{service.url}/#/data/my-photos")
    browser.click(".issue-head button")
    browser.click("dialog button[type=submit]")
    browser.see("labels look wrong", ".issue-head", seconds=300)
    button = browser.ask(SUSPICIOUS)
    assert isinstance(button, WebElement), browser.text(".issues")
    browser.ask("arguments[0].click()", button)
    browser.picture("photographs-wrong-label")
    browser.click(".changes .primary")
    browser.see("my-photos@2 is ready", ".imports")
    catalog = Catalog(settings.data_dir)
    sizes = {each.name: each.train + each.validation + each.test for each in catalog.find("my-photos@2").classes}
    assert sizes == dict.fromkeys(CLASSES, EACH)
    browser.click(".imports a.button")
    browser.see("1 given another class")
    browser.see("labels changed by somebody on the page")
    train(browser)
    browser.see("my-photos@2", ".about")
    assert browser.complaints(besides=("network",)) == []


def packed(root: Path) -> str:
    """Write a folder of pictures for each class, one of them with a wrong label, and pack them."""
    for number, name in enumerate(CLASSES):
        folder = root / name
        folder.mkdir(parents=True)
        for seed in range(EACH):
            grey = drawn(SHAPES[number % len(SHAPES)], 100 * number + seed)
            ImageOps.colorize(grey, "black", COLOURS[number // len(SHAPES)]).save(folder / f"{seed} of {name}.png")
    (root / "apples" / "0 of apples.png").rename(root / "Äpfel, grün" / "wrong.png")
    (root / "apples" / "notes.png").write_text("to buy: more apples")
    return shutil.make_archive(str(root), "zip", root.parent, root.name)


def drop(browser: Browser, path: str) -> None:
    """Drop a file on the page, as a file manager does."""
    place = browser.find(".drop").rect
    x, y = place["x"] + 20, place["y"] + 20
    data = {"items": [], "files": [path], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        browser.driver.execute_cdp_cmd("Input.dispatchDragEvent", {"type": kind, "x": x, "y": y, "data": data})


def train(browser: Browser) -> None:
    """Train on the data set that is shown; returns when the test set is."""
    browser.click(".actions a.button")
    browser.see("It starts at once", ".summary")
    browser.click("form button[type=submit]")
    browser.see("test accuracy", ".outcome", seconds=150)
    browser.see("True class by row", ".details")
