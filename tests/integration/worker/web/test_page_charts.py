"""Charts, times, trials and events of a job's page in a real browser."""

import json

import pytest
from redis import Redis
from selenium.webdriver.common.action_chains import ActionChains
from structlog.testing import capture_logs
from support.calibration.findings import ADVICE
from support.web.browser import Browser
from support.web.service import Service
from support.worker.event_publisher import PLAN, EventPublisher
from support.worker.services import wait_until

from preflight import Client
from worker.events.log_sink import LogSink
from worker.jobs.stages.payloads import advice_payload

CURVE = """
const chart = document.querySelectorAll(".chart")[arguments[0]];
return chart.querySelector("canvas").toDataURL();
"""
SHIFT = """
const done = arguments[0];
const sum = (list) => list.getEntries().reduce((total, { value }) => total + value, 0);
new PerformanceObserver((list) => done(sum(list))).observe({ type: "layout-shift", buffered: true });
setTimeout(() => done(0), 1000);
"""
"""Returns the layout shift of the page so far."""
FIRST = """
new MutationObserver(() => {
  const values = [...document.querySelectorAll("article .chart .value")].filter((one) => one.textContent !== "\u2013");
  if (document.querySelector("article")) window.first ??= values.length;
}).observe(document, { subtree: true, childList: true });
"""
"""Counts the charts with a figure when the panels of a job are put into the document, before they are painted."""
CHOOSE = """
const [label, name] = arguments;
const field = [...document.querySelectorAll(".tools label")].find((one) => one.textContent.startsWith(label));
const choice = field.querySelector("select");
choice.value = name;
choice.dispatchEvent(new Event("change"));
"""


def trained(connection: Redis, job_id: str, *, waited_s: float = 12.5) -> EventPublisher:
    publisher = EventPublisher(connection, job_id)
    publisher.start(waited_s=waited_s)
    publisher.calibrate()
    publisher.train(1, 3)
    return publisher


def test_charts_are_scaled_smoothed_and_zoomed(browser: Browser, service: Service, connection: Redis) -> None:
    """Each control changes what is drawn; the value under the cursor stays the raw one."""
    trained(connection, "curves")
    browser.open(f"{service.url}/#/jobs/curves")
    browser.see("Epoch 3 of 4", ".where")
    wait_until(lambda: bool(browser.ask("return document.querySelector('.chart canvas')")))
    browser.picture("charts")

    def changed(script: str, *arguments: object) -> bool:
        before = browser.ask(CURVE, 0)
        browser.ask(script, *arguments)
        wait_until(lambda: browser.ask(CURVE, 0) != before)
        return True

    assert changed("document.querySelector('.tools input').click()")  # to a linear scale
    assert changed("document.querySelector('.tools input').click()")
    place = browser.find(".chart .u-over")
    ActionChains(browser.driver).move_to_element_with_offset(place, 20, 0).perform()
    browser.see("at epoch", ".chart .value")
    raw = browser.text(".chart:first-child .value")
    assert changed(CHOOSE, "Smoothing", "strong")
    ActionChains(browser.driver).move_by_offset(1, 0).perform()
    assert browser.text(".chart:first-child .value").split(" at ")[0] == raw.split(" at ")[0]
    assert changed(CHOOSE, "Show", "the last half")
    assert changed(CHOOSE, "Show", "all epochs")
    before = browser.ask(CURVE, 1)
    place = browser.find(".chart .u-over")
    drag = ActionChains(browser.driver).move_to_element_with_offset(place, -60, 0).click_and_hold()
    drag.move_by_offset(90, 0).release().perform()
    wait_until(lambda: browser.ask(CURVE, 1) != before)  # the charts beside it show the same epochs
    browser.picture("charts-zoomed")
    ActionChains(browser.driver).double_click(browser.find(".chart .u-over")).perform()
    wait_until(lambda: browser.ask("return document.querySelectorAll('.tools select')[1].value") == "all epochs")
    assert browser.complaints() == []


def test_an_accuracy_is_scaled_by_what_comes_after_the_first_tenth(browser: Browser, service: Service) -> None:
    browser.open(service.url)
    script = """
    const done = arguments[0];
    import("/page/views/charts/scales.js").then(({ accuracyRange, logRange, logSplits, rangeFromZero }) => {
      const points = [[0, 0.1], [0.5, 0.3], [1, 0.6], [5, 0.9], [10, 0.98]].map((point) => point);
      const losses = [[0, 2.3], [1, 0], [2, 0.01]];
      done([accuracyRange({ points }), logRange({ points: losses }), rangeFromZero({ low: 1, high: 2 }),
        logRange({ points: [[0, 0.5], [1, 3.3e-9]] }), logRange({ points: [[0, 3.3e-9]] }),
        accuracyRange({ points, lines: [points, [[1, 0.2]]] }),
        logSplits(null, 1, 0.5, 1e26), logSplits(null, 1, 0.02, 3)]);
    });
    """
    found = browser.driver.execute_async_script(script)
    assert isinstance(found, list)
    (low, high), (least, most), from_zero, *tiny, of_two, wide, narrow = found
    assert of_two[0] < 0.2  # the short run is not left out
    assert 3 <= len(wide) <= 8
    assert narrow[-3:] == [1, 2, 3]
    assert len(narrow) == 8 + 9 + 3
    assert tiny == [[1e-8, pytest.approx(0.55)], [1e-8, pytest.approx(2e-8)]]
    assert 0.5 < low < 0.6
    assert 0.98 < high <= 1
    assert least == 0.009
    assert 2.3 < most < 3
    assert from_zero[0] == 0


def test_a_job_does_not_move_below_its_reader(browser: Browser, service: Service, connection: Redis) -> None:
    """It is drawn in one go, not first by its state and then by its events."""
    trained(connection, "still")
    browser.open(f"{service.url}/#/jobs/still")
    wait_until(lambda: browser.ask("return document.querySelectorAll('.chart canvas').length") == 3)
    shift = browser.driver.execute_async_script(SHIFT)
    assert isinstance(shift, int | float)
    assert shift < 0.05


def test_a_job_is_never_painted_empty(browser: Browser, service: Service, connection: Redis) -> None:
    trained(connection, "whole")
    browser.open(f"{service.url}/#/")
    browser.see("whole", "tbody")
    browser.ask(FIRST)
    browser.ask("location.hash = '#/jobs/whole'")
    browser.see("Epoch 3 of 4", ".where")
    assert browser.ask("return window.first") == 3
    wait_until(lambda: browser.ask("return document.querySelectorAll('.chart canvas').length") == 3)


def test_a_loss_that_falls_never_stops_the_page(browser: Browser, service: Service, connection: Redis) -> None:
    """From a least loss such as 0.105159 uPlot's ticks of a logarithmic axis had no end."""
    publisher = EventPublisher(connection, "falls")
    publisher.start(epochs=3)
    browser.open(f"{service.url}/#/jobs/falls")
    for epoch, loss in enumerate((2.3, 0.105159, 0.031), 1):
        publisher.say("progress", epoch=epoch, epochs=3, step=9, steps=9, loss=loss, accuracy=0.5, samples_per_s=10,
                      eta_s=1)  # fmt: skip
        browser.see(f"{loss:.3g}", ".chart:first-child .value")
    wait_until(lambda: browser.ask("return document.querySelectorAll('.chart canvas').length") == 3)
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_job_without_a_step_has_an_empty_bar_and_a_countdown(
    browser: Browser, service: Service, connection: Redis, client: Client
) -> None:
    """The list's bar counts steps: one of 400 of a single epoch is not full."""
    publisher = EventPublisher(connection, "early")
    publisher.start(epochs=1)
    publisher.say("calibration_trial", **PLAN, knob="own", steps=64, won=False, verdict="own", note="", left_s=500)
    browser.open(f"{service.url}/#/jobs/early")
    browser.see("left to calibrate", ".course .left")
    first = browser.text(".course .left")
    wait_until(lambda: browser.text(".course .left") not in ("", first))
    browser.picture("calibrating")
    assert browser.ask("return document.querySelector('.course progress').hasAttribute('value')") is False
    browser.click(".job-head button")
    browser.see("It has no checkpoint yet.", "dialog")
    browser.click("dialog button[type=button]")
    publisher.say("progress", epoch=1, epochs=1, step=4, steps=400, loss=2, accuracy=0.1, samples_per_s=10, eta_s=60)
    browser.see("Epoch 1 of 1, step 4 of 400", ".where")
    assert browser.ask("return document.querySelector('.course progress').value") == 0.01
    assert client.status("early").steps == 400
    browser.open(service.url)
    browser.see("early", "tbody")
    assert browser.ask("return document.querySelector('tbody progress').value") == 0.01
    assert browser.complaints() == []


def test_trials_and_times_of_a_job(browser: Browser, service: Service, connection: Redis) -> None:
    """What was not worth a measurement is one line; the confirmation has the headline's figures; the time is split."""
    trained(connection, "timed", waited_s=12.5)
    browser.open(f"{service.url}/#/jobs/timed")
    browser.see("1 plan not worth a measurement: compile", ".skipped summary")
    assert "no C++ compiler" not in browser.text(".trial")
    browser.click(".skipped summary")
    browser.see("no C++ compiler was found", ".skipped")
    browser.see("1 plan not reached before the search ended: interop", ".unreached summary")
    assert "3 trials in 8.20\u202fs, of which 2.10\u202fs to start processes" in browser.text(".columns")
    browser.click(".reasons summary")
    browser.see("together, in a fresh process: 1.18x (1.13x to 1.23x)", ".reasons")
    browser.picture("honest")
    assert "1.18\u00d7" in browser.text(".trial:last-child")
    assert "(1.13\u00d7 to 1.23\u00d7)" in browser.text(".trial:last-child")
    times = browser.text(".times")
    assert "waiting\n12.5" in times
    assert "total" in times
    assert browser.complaints() == []


def test_a_doubtful_gain_has_no_single_figure(browser: Browser, service: Service, connection: Redis) -> None:
    publisher = EventPublisher(connection, "doubtful")
    publisher.start()
    publisher.say("calibration_winner", **PLAN, source="measured", ratio=9.16, ratio_low=2, ratio_high=6,
                  confidence="low", doubt="the machine was busy", calibration_seconds=8, import_seconds=2, trials=4,
                  why="probably faster than your own plan (2.00x to 6.00x; the machine was busy)")  # fmt: skip
    browser.open(f"{service.url}/#/jobs/doubtful")
    browser.see("Probably faster than your own plan (2.00x to 6.00x; the machine was busy).", ".panel")
    browser.see("probably faster than the job's own plan (2\u00d7 to 6\u00d7; the machine was busy)", ".panel")
    browser.see("4 trials in 8.00\u202fs, of which 2.00\u202fs to start processes", ".panel")
    assert "9.16" not in browser.text("main")


@pytest.mark.slow
def test_advice_on_larger_batches_is_a_line_of_the_plan(browser: Browser, service: Service, connection: Redis) -> None:
    """In the words of the log, in the plan's panel and among the events; the tiles stay those of the job's batch."""
    publisher = EventPublisher(connection, "advised")
    publisher.start()
    publisher.calibrate()
    browser.open(f"{service.url}/#/jobs/advised")
    browser.see("Confirmation", ".panel")
    assert "Larger batches" not in browser.text("main")
    publisher.say("batch_advice", **advice_payload(ADVICE))
    words = (
        "Batch 512 would fit (410 MiB of 1,024) and train 1.7 times as many samples a second; it changes what is "
        "learned, so it is yours to choose."
    )
    browser.see(f"Larger batches\n{words}", ".panel")
    browser.see(words, ".events")
    assert "12,800" not in browser.text("main")
    assert browser.complaints() == []


@pytest.mark.slow
def test_events_read_as_in_the_log_and_are_copied_as_json_lines(
    browser: Browser, service: Service, connection: Redis, client: Client
) -> None:
    publisher = trained(connection, "told")
    publisher.say("warning", message="look <here>")
    browser.open(f"{service.url}/#/jobs/told")
    browser.see("Warning: look <here>.", ".events")
    stored = list(client.events("told", timeout=0.5))
    with capture_logs() as log:
        for event in stored:
            LogSink("told", 1).emit(event)
    logged = {str(line["message"]) for line in log}
    shown = browser.ask("return [...document.querySelectorAll('.events li p')].map((one) => one.textContent)")
    assert isinstance(shown, list)
    assert len(shown) >= 5
    assert set(shown) <= logged
    assert browser.text(".panel .note").count("Times are in ") == 1

    browser.click(".raw summary")
    browser.find(".raw input").send_keys('"type":"progress"')
    wait_until(lambda: browser.text(".raw .note") == "12 events")
    browser.picture("raw-events")
    lines = browser.text(".raw code").splitlines()
    assert [json.loads(line) for line in lines] == [
        json.loads(event.model_dump_json(exclude_none=True)) for event in stored if event.type == "progress"
    ]
    browser.ask("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.click(".raw button")
    wait_until(lambda: browser.ask("return window.copied") == "\n".join(lines))
    assert browser.complaints() == []


def test_a_failure_without_a_stored_reason_claims_none(
    browser: Browser, service: Service, connection: Redis, client: Client
) -> None:
    publisher = EventPublisher(connection, "lost")
    publisher.start()
    connection.hset("rq:job:lost", "status", "failed")
    assert client.status("lost").status == "failed"
    browser.open(f"{service.url}/#/jobs/lost")
    browser.see("no reason is stored".capitalize(), ".outcome")
    assert "unknown reason" not in browser.text("main")
