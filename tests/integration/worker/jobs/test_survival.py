"""A job survives signals, suspensions and limits on processes, beyond tests/acceptance/test_faults.py."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from redis import Redis
from rq import Queue
from support.files.cgroups import new_cgroup
from support.worker.services import RunWorker, StartWorker, digits_job, wait_for, wait_until
from support.worker.survival import FREQUENT, assert_nothing_duplicated, long_job, until_checkpoint

from preflight import Client
from preflight.redis import keys
from preflight.wire import CheckpointSaved, JobResumed
from training.artifacts.model_dir import MANIFEST, MODEL
from worker.config.settings import Settings


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, str]:
    """Weights of undisturbed jobs."""
    return {}


@pytest.fixture
def sha(client: Client, run_worker: RunWorker, undisturbed: dict[str, str]) -> str:
    """The sha256 of the weights of an undisturbed `long_job`."""
    if "long" not in undisturbed:
        client.enqueue(long_job("reference"))
        run_worker()
        result = client.result("reference")
        assert result is not None
        assert result.model_sha256 is not None
        undisturbed["long"] = result.model_sha256
    return undisturbed["long"]


def test_sigterm_requeues_the_job_at_the_front(
    client: Client, connection: Redis, queue: Queue, start_worker: StartWorker, sha: str
) -> None:
    """The worker saves and exits with 0; the next one resumes that job first."""
    client.enqueue(long_job("job"))
    worker = start_worker()
    until_checkpoint(client, "job", 1)
    client.enqueue(digits_job(job_id="behind"))
    worker.stop()
    assert client.status("job").status == "queued"
    assert queue.get_job_ids() == ["job", "behind"]
    assert connection.hget("rq:job:job", "retries_left") == "2"
    assert start_worker("--burst").wait() == 0
    state = client.status("job")
    assert (state.status, state.attempt, state.model_sha256) == ("finished", 2, sha)
    assert client.status("behind").status == "finished"
    events = assert_nothing_duplicated(client, "job")
    stopped_at = [event for event in events if isinstance(event, CheckpointSaved) and event.attempt == 1][-1]
    (resumed,) = [event for event in events if isinstance(event, JobResumed)]
    assert (resumed.epochs_done, resumed.steps_done) == (stopped_at.epochs_done, stopped_at.steps_done)


@pytest.mark.slow
@pytest.mark.usefixtures("signals_heard")
def test_a_repeated_sighup_is_no_hard_kill(client: Client, start_worker: StartWorker) -> None:
    """Shell and kernel each send one when a terminal is closed."""
    client.enqueue(long_job("job"))
    worker = start_worker()
    until_checkpoint(client, "job", 1)
    worker.process.send_signal(signal.SIGHUP)
    time.sleep(0.01)
    worker.process.send_signal(signal.SIGHUP)
    assert worker.wait(30) == 0
    assert client.status("job").status == "queued"
    types = [event.type for event in client.events("job", timeout=1)]
    assert types[-2:] == ["checkpoint_saved", "job_interrupted"]


@pytest.mark.slow
def test_a_second_sigterm_kills(client: Client, start_worker: StartWorker, sha: str) -> None:
    """Exit code 1, no process left, the job requeued, nothing lost."""
    client.enqueue(long_job("job"))
    worker = start_worker(environment=FREQUENT)
    until_checkpoint(client, "job")
    processes = psutil.Process(worker.process.pid).children(recursive=True)
    for process in processes:
        process.suspend()  # so that the first signal cannot be heeded
    worker.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 1
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert alive == []
    assert client.status("job").status == "queued"
    assert start_worker("--burst").wait() == 0
    assert client.status("job").model_sha256 == sha


@pytest.mark.slow
def test_sigterm_during_calibration_requeues(client: Client, start_worker: StartWorker) -> None:
    client.enqueue(digits_job(job_id="job", calibrate=True, force_calibration=True, epochs=3))
    worker = start_worker()
    assert any(event.type == "calibration_trial" for event in client.events("job", timeout=60))
    worker.stop()
    assert client.status("job").status == "queued"
    assert start_worker("--burst").wait() == 0
    assert client.status("job").status == "finished"


@pytest.mark.slow  # tests/acceptance/test_faults.py has a worker stopped and woken, too
def test_a_frozen_attempt_is_superseded(client: Client, connection: Redis, start_worker: StartWorker, sha: str) -> None:
    """SIGSTOP beyond the lease, takeover, SIGCONT."""
    client.enqueue(long_job("job"))
    first = start_worker(environment=FREQUENT)
    until_checkpoint(client, "job")
    tree = [psutil.Process(first.process.pid), *psutil.Process(first.process.pid).children(recursive=True)]
    for process in tree:
        process.suspend()
    start_worker(environment=FREQUENT)
    wait_until(lambda: connection.hget(keys.fence("job"), "attempt") == "2", seconds=60)
    for process in tree:
        process.resume()
    state = wait_for(client, "job")
    assert (state.status, state.attempt, state.model_sha256) == ("finished", 2, sha)
    assert_nothing_duplicated(client, "job")
    wait_until(lambda: not psutil.Process(first.process.pid).children(), seconds=30)
    assert "superseded" in first.output()
    client.enqueue(digits_job(job_id="next"))
    assert wait_for(client, "next").status == "finished"


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
