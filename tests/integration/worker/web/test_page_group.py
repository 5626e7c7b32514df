"""A job that several workers train, on the page in a real browser, and the form that asks for them."""

import pytest
from pydantic import JsonValue
from redis import Redis
from support.web.browser import Browser
from support.web.service import Service
from support.worker.event_publisher import EventPublisher

from preflight import Client
from preflight.redis import keys

MEMBERS: list[JsonValue] = ["preflight-1.8", "preflight-2.8", "<script>document.title = 'owned'</script>"]


NONE = "\u2013"
"""Stands for a missing figure."""
REFUSED = {
    "0": "whole number, at least 1 and at most 64", "3-2": "range such as 1-4", "1-": "whole number",
    "1-2-3": "range such as 1-4", "1-65": "at most 64",
}  # fmt: skip


def publish_group(connection: Redis) -> EventPublisher:
    job = EventPublisher(connection, "together")
    job.start(worker=MEMBERS[0])
    job.say("group_formed", workers=3, members=MEMBERS, cores=[1, 1, 0.5], memory_mb=[1024, 1024, 512], seconds=1.2,
            message="3 workers train this job together")  # fmt: skip
    job.say("group_measured", workers=3, members=MEMBERS, speeds=[812, 806, 401], alone_samples_per_s=812,
            group_samples_per_s=1461, speedup=1.8, kept=True, message="together 1.8 times as fast")  # fmt: skip
    job.train(1, 1)
    return job


def rows(browser: Browser) -> list[str]:
    found = browser.ask(
        "return [...document.querySelectorAll('[aria-label=Workers] tbody tr')].map((row) => row.innerText)"
    )
    assert isinstance(found, list)
    return [" ".join(str(row).replace("\u202f", " ").split()) for row in found]


def test_a_group_is_shown_with_its_containers_and_its_speed(
    browser: Browser, service: Service, connection: Redis
) -> None:
    """As it forms, is measured, loses a member and ends; markup in a name stays text."""
    job = publish_group(connection)
    browser.open(f"{service.url}/#/jobs/together")
    browser.see("3 workers train this job together", ".panel")
    browser.see("Together 1.8 times as fast.", ".panel")
    assert rows(browser) == [
        f"{MEMBERS[0]} leader 1 core, 1.00 GiB 812",
        f"{MEMBERS[1]} rank 1 1 core, 1.00 GiB 806",
        f"{MEMBERS[2]} rank 2 0.5 cores, 512 MiB 401",
    ]
    browser.see("3 workers", ".about")
    browser.picture("group")
    assert browser.ask("return document.querySelectorAll('main script').length") == 0
    job.say("warning", message="the machine became slower", rank=2)
    job.say("group_changed", workers=2, members=[MEMBERS[0], "new.1"], left=MEMBERS[1:], joined=["new.1"],
            message="2 members have left, new.1 has joined")  # fmt: skip
    browser.see("2 members have left, new.1 has joined", ".lead")
    assert rows(browser) == [f"{MEMBERS[0]} leader 1 core, 1.00 GiB 812", f"new.1 rank 1 {NONE} {NONE}"]
    for line in ("Together 1.8 times as fast", "Warning of rank 2: the machine became slower"):
        browser.see(line, ".events")
    browser.see("2 workers", ".about")
    browser.open(service.url)
    browser.see("cnn on mnist, 2 workers", "tbody")
    connection.sadd("rq:workers:preflight", "rq:worker:new.1")
    connection.hset("rq:worker:new.1", mapping={"state": "busy", "hostname": "new", keys.GROUP: "together"})
    browser.see("together, as a member", ".workers")
    assert browser.complaints() == []


@pytest.mark.slow
def test_a_job_without_enough_workers_waits_again(browser: Browser, service: Service, connection: Redis) -> None:
    job = publish_group(connection)
    browser.open(f"{service.url}/#/jobs/together")
    browser.see("running", ".about")
    connection.hset("rq:job:together", "status", "queued")
    connection.zrem("rq:wip:preflight", "together")
    job.say("group_short", workers=1, wanted=3, message="the job needs 3 workers and found 1")
    browser.see("queued", ".about")
    browser.see("The job needs 3 workers and found 1.", ".events")
    second = EventPublisher(connection, "together", attempt=2)
    second.start()
    browser.see("attempt 2", ".about")
    assert rows(browser) == []
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_form_takes_a_number_of_workers_or_a_range(browser: Browser, service: Service, client: Client) -> None:
    browser.open(f"{service.url}/#/new")
    browser.see("More settings", "form")
    browser.ask("for (const one of document.querySelectorAll('form details')) one.open = true")
    field = browser.find("[name='workers']")
    for text, said in REFUSED.items():
        field.clear()
        field.send_keys(text)
        browser.click("form button[type=submit]")
        browser.see(said, "#field-workers-problem")
    field.clear()
    field.send_keys("1-4")
    browser.find("[name='job_id']").send_keys("many")
    browser.click("form button[type=submit]")
    browser.see("many", "h1")
    request = client.request("many")
    assert request is not None
    assert request["workers"] == {"min": 1, "max": 4}
    browser.open(f"{service.url}/#/new?from=many")
    browser.see("The settings are those of", "form")
    assert browser.find("[name='workers']").get_attribute("value") == "1-4"
    assert browser.complaints() == []
