"""Files that attempts leave: expired ones are removed, and a suspended attempt publishes no model."""

import os
import time

from support.worker.services import RunWorker, digits_job

from preflight import Client
from worker.config.settings import Settings
from worker.state.paths import STAGING, open_paths


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
