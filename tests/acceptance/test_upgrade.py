"""This version goes on with what 0.25.1 left: results, models, plans, checkpoints, queued and scheduled jobs.

0.25.1 is its commit, checked out and run with the packages that are here.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from redis import Redis
from support.worker.services import ROOT, RunWorker, wait_for, wait_until

from preflight import Client, TrainJob
from tools.bench.versions import checked_out, environment
from worker.config.settings import Settings

REVISION: Final = "f868e4d"
"""0.25.1."""
SMALL: Final = {
    "type": "preflight.train.v1",
    "dataset": "digits",
    "model": "cnn",
    "batch_size": 64,
    "plan": {"threads": 1},
}
ENQUEUE: Final = """
import json, os, sys
from datetime import timedelta
from rq import Queue
from rq.serializers import JSONSerializer
from redis import Redis
from worker.client import Client
from worker.wire import TrainJob
url, jobs = os.environ["REDIS_URL"], json.loads(sys.argv[1])
client = Client(url)
for job in jobs:
    client.enqueue(TrainJob(**job))
queue = Queue("preflight", connection=Redis.from_url(url), serializer=JSONSerializer)
later = TrainJob(**{**jobs[0], "job_id": "scheduled"}).model_dump(mode="json", exclude_none=True)
queue.enqueue_in(timedelta(seconds=1), "worker.jobs.train", later, job_id="scheduled")
"""


@pytest.fixture(scope="module")
def earlier() -> Iterator[Path]:
    """The checkout of 0.25.1."""
    known = subprocess.run(
        ["/usr/bin/env", "git", "cat-file", "-e", REVISION], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip(f"this copy has no history with {REVISION}")
    with checked_out(REVISION) as tree:
        yield tree


class Earlier:
    """0.25.1 on the Redis and the directories of a test."""

    def __init__(self, tree: Path, settings: Settings) -> None:
        self.tree = tree
        self.environment = environment(tree, settings.redis_url, settings.state_dir.parent) | {
            "PREFLIGHT_STATE_DIR": str(settings.state_dir), "PREFLIGHT_CACHE_DIR": str(settings.cache_dir),
            "PREFLIGHT_ARTIFACT_DIR": str(settings.artifact_dir), "PREFLIGHT_REPORT": "off",
            "PREFLIGHT_CHECKPOINT_SECONDS": "0.2", "PREFLIGHT_STANDBY": "off",
        }  # fmt: skip

    def run(self, *arguments: str) -> str:
        """Run its Python; returns what it printed."""
        ended = subprocess.run(
            [sys.executable, "-P", *arguments], cwd=self.tree, env=self.environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr[-2000:]
        return ended.stdout

    def enqueue(self, *jobs: dict[str, object]) -> None:
        self.run("-c", ENQUEUE, json.dumps(jobs))

    def worker(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", "worker"], cwd=self.tree, env=self.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


@pytest.mark.slow
def test_nothing_of_the_earlier_version_is_lost(
    earlier: Path, settings: Settings, client: Client, connection: Redis, run_worker: RunWorker
) -> None:
    """It trains one job, is killed in another, and leaves the others; this version ends all of them."""
    before = Earlier(earlier, settings)
    before.enqueue(
        {**SMALL, "job_id": "done", "epochs": 1}, {**SMALL, "job_id": "begun", "epochs": 12},
        {**SMALL, "job_id": "waiting", "epochs": 1, "average_every": 1},
    )  # fmt: skip
    worker = before.worker()
    try:
        wait_for(client, "done", "finished")
        wait_until(lambda: any((settings.state_dir / "jobs" / "begun").rglob("*.safetensors")), seconds=60)
    finally:
        worker.kill()
        worker.wait()
    result = client.result("done")
    assert result is not None
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.5
    assert (settings.artifact_dir / "done" / "manifest.json").is_file()
    log = run_worker().output()
    states = {job: client.status(job) for job in ("done", "begun", "waiting", "scheduled")}
    assert {job: state.status for job, state in states.items()} == dict.fromkeys(states, "finished"), log
    resumed = [event for event in client.lifecycle_events("begun") if event.type == "job_resumed"]
    assert [event.steps_done > 0 for event in resumed] == [True]
    assert client.result("done") == result
    assert connection.llen("rq:queue:preflight") == 0


@pytest.mark.slow
def test_the_earlier_worker_takes_jobs_of_this_client(earlier: Path, settings: Settings, client: Client) -> None:
    """A producer is often updated before its workers."""
    before = Earlier(earlier, settings)
    client.enqueue(TrainJob.model_validate({**SMALL, "job_id": "new", "epochs": 1}))
    worker = before.worker()
    try:
        wait_for(client, "new", "finished")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
