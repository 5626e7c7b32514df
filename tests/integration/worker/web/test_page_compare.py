"""Comparison of runs: the route, and the page in a real browser."""

import csv
import io
import json
import time
from pathlib import Path

import pytest
from redis import Redis
from support.redis.long_runs import EPOCHS, add_run
from support.web.browser import Browser
from support.web.service import Service
from support.worker.event_publisher import PLAN, EventPublisher
from support.worker.services import digits_job

from preflight import Client
from preflight.redis import keys
from preflight.wire import EVENTS_KEPT, EpochDone, Progress, flatten
from worker.web.listing.models import Comparison


@pytest.mark.slow
def test_runs_are_compared_whatever_their_number_of_events(service: Service, client: Client, raw: Redis) -> None:
    """What differs, with defaults; curves of a bounded number of points, in order, from the first to the last."""
    for rate in (1, 2):
        add_run(raw, client, f"run-{rate}", rate, learning_rate=rate / 1000, augmentation={"rotate_degrees": 5.0})
    answer = service.ask("GET", "/v1/compare?job=run-2&job=run-1&job=run-2")
    assert answer.status == 200, answer.body
    found = Comparison.model_validate_json(answer.body)
    assert found.differing == ["learning_rate"]
    second, first = found.jobs
    assert (first.settings["learning_rate"], second.settings["learning_rate"]) == (0.001, 0.002)
    assert first.settings["augmentation.rotate_degrees"] == 5.0
    assert first.settings["momentum"] == 0.9
    loss = first.curves["loss"]
    assert 200 < len(loss.epochs) <= 500
    assert [*loss.epochs] == sorted(set(loss.epochs))
    assert loss.epochs[-1] > EPOCHS - 0.5
    for epoch, value in zip(loss.epochs, loss.values, strict=True):
        assert abs(value - 2 / (1 + epoch)) < 1e-4
    assert first.curves["val_acc"].epochs[-1] == EPOCHS
    assert len(first.curves["val_acc"].epochs) == EPOCHS


@pytest.mark.slow
def test_a_short_run_is_whole_and_a_second_attempt_replaces(service: Service, client: Client, raw: Redis) -> None:
    client.enqueue(digits_job(job_id="short"))
    for epoch, step, loss in ((1, 1, 0.9), (1, 2, 0.8), (1, 2, 0.7), (2, 1, 0.5), (1, 2, 0.4)):
        event = Progress(seq=1, job_id="short", attempt=1, ts=1, epoch=epoch, epochs=2, step=step, steps=2, loss=loss,
                         accuracy=0.5, samples_per_s=1, eta_s=1)  # fmt: skip
        raw.xadd(keys.events("short"), dict(flatten(event).items()))
    end = EpochDone(seq=2, job_id="short", attempt=1, ts=2, epoch=1, loss=0.4, samples_per_s=1, took_s=1, train_s=1)
    raw.xadd(keys.events("short"), dict(flatten(end).items()))
    found = Comparison.model_validate_json(service.ask("GET", "/v1/compare?job=short").body)
    assert [*found.jobs[0].curves["loss"].values] == [0.9, 0.4]
    assert [*found.jobs[0].curves["val_acc"].values] == []
    raw.set(keys.events("short"), "no stream")
    assert service.ask("GET", "/v1/compare?job=short").status == 200


@pytest.mark.slow
def test_a_wrong_comparison_is_one_sentence(service: Service) -> None:
    assert service.ask("GET", "/v1/compare?job=none")["reason"] == "unknown_job"
    for query in ("", "?" + "&".join(f"job={number}" for number in range(6))):
        refused = service.ask("GET", f"/v1/compare{query}")
        assert (refused.status, refused["reason"], refused["field"]) == (422, "invalid_config", "job")


def test_five_runs_are_ticked_and_compared(
    browser: Browser, service: Service, client: Client, raw: Redis, tmp_path: Path
) -> None:
    """From the list to a permalink, its curves, CSV and JSON; prints how long five runs of 10,000 events took."""
    for rate in range(1, 6):
        add_run(raw, client, f"run-{rate}", rate, learning_rate=rate / 1000)
    browser.open(service.url)
    for rate in range(1, 6):
        browser.tick(f"Select run-{rate}")
    browser.see("5 jobs selected", ".selection")
    browser.click(".selection a")
    browser.see("Comparison", "h1")
    browser.see("learning_rate", "table")
    address = browser.driver.current_url
    assert address.count("job=") == 5
    browser.ask("performance.mark('begin'); location.hash = '#/'")
    browser.see("Jobs", "h1")
    drawn = browser.driver.execute_async_script("""
    const done = arguments[1];
    const begin = performance.now();
    new MutationObserver((_, observer) => {
      if (document.querySelectorAll(".compare canvas").length < 5) return;
      observer.disconnect();
      requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));
    }).observe(document.querySelector("main"), { subtree: true, childList: true });
    location.href = arguments[0];
    """, address)  # fmt: skip
    print(f"\na comparison of five runs of {EVENTS_KEPT:,} events was drawn in {drawn:.0f} ms")
    assert browser.text(".best").split("\n")[0].replace("\u202f", " ") == "95.00 %"
    browser.picture("compare")
    browser.click("#all-settings")
    browser.see("weight_decay", "table")
    browser.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": False}
    )
    for kind in ("csv", "json"):
        browser.click(f".actions button:nth-child({1 if kind == 'csv' else 2})")
    deadline = time.monotonic() + 30
    while not all((tmp_path / f"comparison.{kind}").exists() for kind in ("csv", "json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO((tmp_path / "comparison.csv").read_text()))}
    assert rows["run"] == [f"run-{rate}" for rate in range(1, 6)]
    assert rows["setting learning_rate"] == ["0.001", "0.002", "0.003", "0.004", "0.005"]
    assert len(json.loads((tmp_path / "comparison.json").read_text())["jobs"]) == 5
    browser.open(address)
    browser.see("learning_rate", "table")
    assert browser.complaints() == []


def test_plans_and_predictions_stand_side_by_side(browser: Browser, service: Service, connection: Redis) -> None:
    """A doubtful gain has no single figure here either."""
    sure, doubtful = EventPublisher(connection, "sure"), EventPublisher(connection, "doubtful")
    for publisher in (sure, doubtful):
        publisher.start()
        publisher.calibrate()
    doubtful.say("calibration_winner", **PLAN, source="measured", why="probably faster", ratio=9.16, ratio_low=2,
                 ratio_high=6, confidence="low", doubt="the machine was busy", predicted_epoch_s=5,
                 calibration_seconds=8, import_seconds=2, trials=4)  # fmt: skip
    sure.train(1, 2)
    browser.open(f"{service.url}/#/compare?job=sure&job=doubtful")
    plans = "[aria-label='Plans and predictions']"
    browser.see("probably faster (2\u00d7 to 6\u00d7; the machine was busy)", plans)
    shown = browser.text(plans).replace("\u202f", " ")
    assert "1.18\u00d7" in shown
    assert "9.16" not in shown
    assert "Predicted epoch time\t4.40 s\t5.00 s" in shown
    assert "2 threads, float32" in shown
    browser.picture("compare-plans")
    assert browser.complaints() == []


@pytest.mark.slow
def test_what_cannot_be_compared_is_said(browser: Browser, service: Service) -> None:
    browser.open(f"{service.url}/#/compare?job=%3Cscript%3E&job=none")
    browser.see("is not known", "main")
    assert browser.ask("return document.querySelectorAll('main script').length") == 0
    assert browser.complaints(besides=("network",)) == []
