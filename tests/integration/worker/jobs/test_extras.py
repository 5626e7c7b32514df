"""What follows a result outlives kills, stops, full disks and failures, and never changes the outcome."""

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from redis import Redis
from rq import Queue
from support.worker.services import StartWorker, Worker, digits_job, wait_for, wait_until
from support.worker.survival import assert_nothing_duplicated

from preflight import Client
from preflight.container.resources import detect
from preflight.redis import keys
from preflight.wire import AnyEvent
from training.artifacts.model_dir import REPORT
from worker.config.settings import Settings
from worker.queue.maintenance.extras_room import may_run_beside
from worker.queue.worker import BLMOVE_TIMEOUT
from worker.state.paths import JOBS

REPORTING = {"PREFLIGHT_REPORT": "auto"}


@pytest.fixture
def stopped_report(client: Client, start_worker: StartWorker) -> tuple[Worker, psutil.Process]:
    """A worker that has trained `job`, and the process of its report, stopped before it has written anything."""
    client.enqueue(digits_job(job_id="job", epochs=1))
    worker = start_worker(environment=REPORTING)
    return worker, stop_report(worker)


def stop_report(worker: Worker) -> psutil.Process:
    """Wait for the report's process and stop it."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        children = psutil.Process(worker.process.pid).children(recursive=True)
        for child in children:
            with suppress(psutil.Error):  # it has just ended
                found.extend([child] if child.name() == "report" else [])
        return bool(found)

    wait_until(is_there, seconds=90)
    found[0].suspend()
    return found[0]


def report_of(settings: Settings) -> Path:
    return settings.artifact_dir / "job" / REPORT


def assert_reported(client: Client, settings: Settings) -> list[AnyEvent]:
    """Assert that the report is there, told once, and part of state and result; return the events."""
    wait_until(lambda: client.status("job").report is not None, seconds=180)
    wait_until(lambda: not (settings.state_dir / JOBS / "job").exists())
    events = assert_nothing_duplicated(client, "job")
    assert [event.type for event in events].count("report_ready") == 1
    assert {event.attempt for event in events} == {1}
    result = client.result("job")
    assert result is not None
    assert result.report == client.status("job").report == str(report_of(settings))
    assert report_of(settings).read_text().startswith("<!doctype html>")
    return events


@pytest.mark.covers_children
def test_neither_the_result_nor_the_next_job_waits_for_a_report(
    settings: Settings, client: Client, queue: Queue, stopped_report: tuple[Worker, psutil.Process]
) -> None:
    """State, result and RQ's status are there; where there is room, the next job trains meanwhile."""
    _, report = stopped_report
    assert client.status("job").status == "finished"
    wait_until(lambda: "job" in queue.finished_job_registry.get_job_ids())
    result = client.result("job")
    assert result is not None
    assert (result.status, result.report, report_of(settings).exists()) == ("finished", None, False)
    beside = may_run_beside(detect())
    if beside:
        assert os.sched_getscheduler(report.pid) == os.SCHED_IDLE
        client.enqueue(digits_job(job_id="next", epochs=1))
        assert wait_for(client, "next").status == "finished"
    report.resume()
    assert [event.type for event in assert_reported(client, settings)][-2:] == ["training_done", "report_ready"]
    assert not beside or not started_after(client, report="job", job="next")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", ["killed", pytest.param("stopped", marks=pytest.mark.slow), "every process stopped"])
def test_the_next_worker_makes_the_report(
    end: str, settings: Settings, client: Client, start_worker: StartWorker,
    stopped_report: tuple[Worker, psutil.Process],
) -> None:  # fmt: skip
    """After SIGKILL of the whole tree; after SIGTERM to the worker or to all, at which the worker exits with 0."""
    worker, report = stopped_report
    root = psutil.Process(worker.process.pid)
    tree = [*root.children(recursive=True), root]
    if end == "killed":
        for process in tree:
            process.kill()
        psutil.wait_procs(tree, timeout=30)  # a dying one still holds its lock
    elif end == "stopped":
        worker.stop()
    else:
        for process in tree:
            process.terminate()
        report.resume()
        assert worker.wait(30) == 0, worker.output()
        assert psutil.wait_procs(tree, timeout=10)[1] == []
        assert "extras_died" not in worker.output()
    assert client.status("job").status == "finished"
    assert not report_of(settings).exists()
    assert start_worker("--burst", environment=REPORTING).wait() == 0
    assert_reported(client, settings)


@pytest.mark.slow
def test_a_superseded_attempt_adds_nothing(
    settings: Settings, connection: Redis, start_worker: StartWorker, stopped_report: tuple[Worker, psutil.Process]
) -> None:
    worker, _ = stopped_report
    worker.stop()
    connection.hset(keys.fence("job"), mapping={"attempt": "7", "owner": "another"})
    before = connection.xlen(keys.events("job"))
    later = start_worker("--burst", environment=REPORTING)
    assert later.wait() == 0
    assert "superseded" in later.output()
    assert (connection.xlen(keys.events("job")), report_of(settings).exists()) == (before, False)


def started_after(client: Client, *, report: str, job: str) -> bool:
    """Whether `job` has begun after the report of another."""
    (ready,) = [event.ts for event in client.events(report, timeout=5) if event.type == "report_ready"]
    started = next(event.ts for event in client.events(job, timeout=5) if event.type == "job_started")
    return started > ready


@pytest.mark.slow
def test_on_one_core_the_next_job_waits(settings: Settings, client: Client, start_worker: StartWorker) -> None:
    core = str(min(os.sched_getaffinity(0)))
    worker = start_worker(environment=REPORTING, prefix=("taskset", "-c", core))
    client.enqueue(digits_job(job_id="job", epochs=1))
    report = stop_report(worker)
    assert os.sched_getscheduler(report.pid) != os.SCHED_IDLE or in_idle_class()
    client.enqueue(digits_job(job_id="next", epochs=1))
    report.resume()
    assert_reported(client, settings)
    assert wait_for(client, "next").status == "finished"
    assert started_after(client, report="job", job="next")


@pytest.mark.slow
def test_a_worker_that_ends_with_its_queue_runs_what_waits_for_a_report(
    client: Client, connection: Redis, start_worker: StartWorker
) -> None:
    """Also where the report ends after the worker's last look at its queue: here in the middle of its second wait."""
    connection.set(keys.maintenance("preflight"), "another", ex=60)  # else this worker cleans, and waits at other times
    for name in ("job", "next"):
        client.enqueue(digits_job(job_id=name, epochs=1))
    core = str(min(os.sched_getaffinity(0)))
    worker = start_worker("--burst", environment=REPORTING, prefix=("taskset", "-c", core))
    report = stop_report(worker)
    time.sleep(1.3 * BLMOVE_TIMEOUT)
    report.kill()
    assert worker.wait() == 0
    assert client.status("next").status == "finished"


def in_idle_class() -> bool:
    """Whether these tests run at idle priority themselves."""
    return os.sched_getscheduler(0) == os.SCHED_IDLE
