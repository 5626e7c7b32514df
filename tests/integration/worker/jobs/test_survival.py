"""A job survives signals, suspensions and limits on processes, beyond tests/acceptance/test_faults.py."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue
from support.files.cgroups import new_cgroup
from support.worker.services import RunWorker, StartWorker, digits_job, wait_for, wait_until
from support.worker.survival import assert_nothing_duplicated

from preflight import Client
from training.artifacts.model_dir import MANIFEST, MODEL
from worker.config.settings import Settings


@pytest.mark.slow
def test_a_published_model_is_recovered(
    settings: Settings, client: Client, connection: Redis, run_worker: RunWorker
) -> None:
    """Another request under its id fails, although Redis has lost its data, and keeps the model."""
    client.enqueue(digits_job(job_id="job"))
    run_worker()
    first = client.result("job")
    assert first is not None
    connection.flushall()
    client.enqueue(digits_job(job_id="job"))
    run_worker()
    recovered = client.result("job")
    assert recovered is not None
    assert recovered.attempt > first.attempt  # no suspended attempt can replace it
    assert recovered.model_copy(update={"attempt": first.attempt}) == first
    assert "progress" not in [event.type for event in client.events("job", timeout=5)]
    connection.flushall()
    client.enqueue(digits_job(job_id="job", seed=1))
    run_worker()
    state = client.status("job")
    assert (state.status, state.reason, state.field) == ("failed", "invalid_config", "job_id")
    manifest = json.loads((settings.artifact_dir / "job" / MANIFEST).read_text())
    assert manifest["sha256"][MODEL] == first.model_sha256


@pytest.fixture
def few_more_processes() -> Iterator[Callable[[int, int], Path]]:
    """Return a function that limits a process to so many more; it returns the file of the limit."""
    with new_cgroup("pids") as directory:

        def allow(pid: int, more: int) -> Path:
            (directory / "cgroup.procs").write_text(str(pid))
            (directory / "pids.max").write_text(str(int((directory / "pids.current").read_text()) + more))
            return directory / "pids.max"

        yield allow
        for pid in (directory / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("then", ["the limit is raised", "the worker is stopped"])
def test_a_worker_waits_at_its_limit_on_processes(
    then: str, client: Client, start_worker: StartWorker, queue: Queue, few_more_processes: Callable[[int, int], Path]
) -> None:
    """The job waits; a stopped worker leaves it in its queue."""
    worker = start_worker()
    wait_until(lambda: "worker_started" in worker.output())
    limit = few_more_processes(worker.process.pid, 0)
    client.enqueue(digits_job(job_id="patient"))
    wait_until(lambda: "fork_retry" in worker.output())
    if then == "the limit is raised":
        limit.write_text("max")
        assert wait_for(client, "patient").status == "finished"
        assert assert_nothing_duplicated(client, "patient")[0].attempt == 1
        worker.process.terminate()
    else:
        worker.stop()
        assert len(queue.job_ids) == 1
        assert not queue.started_job_registry.get_job_ids(cleanup=False)


def test_a_job_without_a_process_for_training_is_retried(
    client: Client, start_worker: StartWorker, few_more_processes: Callable[[int, int], Path]
) -> None:
    worker = start_worker()
    wait_until(lambda: "worker_started" in worker.output())
    limit = few_more_processes(worker.process.pid, 1)  # for its supervisor
    client.enqueue(digits_job(job_id="crowded"))
    wait_until(lambda: "no process could be started" in worker.output().lower())
    limit.write_text("max")
    wait_until(lambda: client.status("crowded").status == "finished", seconds=90)
    failed = next(event for event in client.events("crowded", timeout=10) if event.type == "job_failed")
    assert (failed.reason, failed.attempt) == ("child_failed", 1)
    assert "raise the container's limit on processes or memory" in failed.message
