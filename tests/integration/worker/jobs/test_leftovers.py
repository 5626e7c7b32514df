"""Files that attempts leave: expired ones are removed, and a suspended attempt publishes no model."""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from redis import Redis
from support.worker.services import RunWorker, StartWorker, digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from training.artifacts.model_dir import attempt_of, read_manifest
from worker.config.settings import Settings
from worker.state.paths import STAGING, open_paths

FREEZE = """
import os, signal
from worker.jobs.stages import publishing

publish = publishing.publish

def freeze_and_publish(*arguments):
    if os.environ["FREEZE"] == "before":
        os.kill(os.getpid(), signal.SIGSTOP)
    done = publish(*arguments)
    if os.environ["FREEZE"] == "after":
        os.kill(os.getpid(), signal.SIGSTOP)
    return done

publishing.publish = freeze_and_publish
"""
"""sitecustomize that suspends a supervisor before or after the renames."""


def test_a_starting_worker_removes_expired_files(settings: Settings, client: Client, run_worker: RunWorker) -> None:
    """It keeps those of its jobs."""
    where = open_paths(settings, "dead", 1)
    where.staged.mkdir()
    where.close()
    when = time.time() - settings.state_ttl - 3600
    for root in (settings.state_dir, settings.artifact_dir):
        for path in (*root.rglob("*"), root):
            os.utime(path, (when, when))
    client.enqueue(digits_job(job_id="job"))
    run_worker()
    assert client.status("job").status == "finished"
    assert list((settings.state_dir / "jobs").iterdir()) == []
    assert list((settings.artifact_dir / STAGING).iterdir()) == []


@pytest.mark.slow  # two trainings and a lease; tests/unit/training/artifacts/test_artifact.py has the same in a second
def test_a_suspended_attempt_does_not_replace_a_newer_model(
    settings: Settings, client: Client, connection: Redis, start_worker: StartWorker, tmp_path: Path
) -> None:
    """SIGSTOP before the renames, takeover, the newer model is published, SIGCONT."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(FREEZE)
    path = os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH"))))

    def start(when: str) -> psutil.Process:
        """Start a worker; return its supervisor, once that is frozen."""
        worker = start_worker(environment={"PYTHONPATH": path, "FREEZE": when})

        def frozen() -> list[psutil.Process]:
            children = psutil.Process(worker.process.pid).children()
            return [child for child in children if child.status() == psutil.STATUS_STOPPED]

        wait_until(lambda: bool(frozen()), seconds=120)
        return frozen()[0]

    client.enqueue(digits_job(job_id="job"))
    first = start("before")
    second = start("after")
    assert connection.hget(keys.fence("job"), "attempt") == "2"
    assert attempt_of(settings.artifact_dir / "job") == 2
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE, seconds=60)
    second.send_signal(signal.SIGCONT)
    state = wait_for(client, "job")
    manifest = read_manifest(settings.artifact_dir / "job")
    assert manifest is not None
    assert (state.status, manifest["attempt"]) == ("finished", 2)
    digests = manifest["sha256"]
    assert isinstance(digests, dict)
    assert digests["model.safetensors"] == state.model_sha256
