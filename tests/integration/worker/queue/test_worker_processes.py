"""`preflight worker --processes`: workers that share a host, through a real Redis."""

import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest
from redis import Redis
from support.worker.services import StartWorker, Worker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.container.resources import detect
from preflight.wire import JobStarted, ResourceLimits, TrainingConfig
from worker.cli.diagnosis.health import check_health
from worker.config.settings import Settings
from worker.web.listing.overview import read_overview


@pytest.fixture
def two(start_worker: StartWorker) -> Iterator[Worker]:
    if detect().cores < 2:
        pytest.skip("two processes need two cores")
    worker = start_worker("--processes", "2")
    yield worker
    worker.stop()
    assert worker.output().count("worker_stopped") == 2


def states(raw: Redis) -> list[str]:
    return [worker.state for worker in read_overview(raw, "preflight").workers]


def workers(worker: Worker) -> set[int]:
    return {process.pid for process in psutil.Process(worker.process.pid).children()}


@pytest.mark.covers_children
def test_two_processes_run_two_jobs_at_the_same_time(client: Client, raw: Redis, two: Worker) -> None:
    """Each with half of the cores and the memory; the job of a killed one is resumed by the one that replaces it."""
    wait_until(lambda: states(raw) == ["idle", "idle"])
    for job_id in ("one", "two"):
        client.enqueue(digits_job(job_id=job_id, epochs=5, plan={}))
    wait_until(lambda: states(raw) == ["busy", "busy"])
    before, processors = workers(two), []
    for job_id in ("one", "two"):
        events = client.events(job_id)
        started = next(event for event in events if isinstance(event, JobStarted))
        limits = next(event for event in events if isinstance(event, ResourceLimits))
        config = next(event for event in events if isinstance(event, TrainingConfig))
        assert limits.cpu_cores == config.plan().threads == max(1, len(detect().affinity) // 2)
        assert limits.memory_mib == (detect().memory_bytes // 2) >> 20
        assert limits.source.endswith("; one of 2 equal shares")
        pid = int(started.worker.split(".")[-2])
        processors.append(set(psutil.Process(pid).cpu_affinity()))
    assert processors[0].isdisjoint(processors[1])

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(workers(two) - before) == 1)
    for job_id in ("one", "two"):
        assert wait_for(client, job_id).status == "finished", two.output()
    assert re.search(rf'"event": "worker_killed", .*"pid": {pid}, ', two.output())


def test_the_processes_are_healthy_and_told_apart_in_the_log(settings: Settings, raw: Redis, two: Worker) -> None:
    wait_until(lambda: len(read_overview(raw, "preflight").workers) == 2)
    wait_until(lambda: two.output().count("resource_limits") == 2)
    assert check_health(settings).startswith("2 workers are alive")
    limits = [line for line in two.output().splitlines() if "resource_limits" in line]
    names = {worker.name for worker in read_overview(raw, "preflight").workers}
    assert {name for name in names for line in limits if f'"worker": "{name}"' in line} == names


def test_a_mistake_is_reported_once(start_worker: StartWorker, settings: Settings) -> None:
    """In one sentence, before a process is started."""
    settings.artifact_dir.touch()
    worker = start_worker("--processes", "2")
    assert worker.wait() == 1
    assert worker.output().count("cannot be written") == 1
    settings.artifact_dir.unlink()
    worker = start_worker(environment={"PREFLIGHT_PROCESSES": "1000"})
    assert worker.wait() == 2
    assert worker.output().startswith("preflight: processes is 1000, but this container has ")
    worker = start_worker("--processes", "0")
    assert worker.wait() == 2
