"""The wheels with the newest version of every dependency, as `pip install` chooses it without constraints."""

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest
from support.web.service import serving
from support.worker.services import Wheels, new_environment, wait_for

from preflight import Client
from worker.config.settings import Settings, service_environment

TRAINING = ("numpy", "pillow", "psutil", "safetensors")
"""The extra `train` but torch, which takes minutes to install: it comes from this environment."""


@pytest.fixture(scope="module")
def newest(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment for all roles; packages that it lacks are those of this one."""
    directory = tmp_path_factory.mktemp("newest")
    python = new_environment(directory, str(wheels.client), f"{wheels.worker}[web]", *TRAINING, constrained=False)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.fixture(autouse=True)
def no_source_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the source off the path of the processes that a test starts."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.mark.slow
def test_a_job_is_enqueued_and_trained(newest: Path, settings: Settings, client: Client) -> None:
    """Producer and worker run from the wheels."""
    environment = {**os.environ, **service_environment(settings)}
    preflight = str(newest.parent / "preflight")
    where = [str(newest), "-P", "-c", "import worker; print(worker.__file__)"]
    assert subprocess.check_output(where, text=True).startswith(str(newest.parents[1]))
    job = ["--dataset", "digits", "--batch-size", "32", "--job-id", "newest", "--no-calibrate"]
    enqueued = subprocess.run([preflight, "enqueue", *job], env=environment, capture_output=True, text=True)
    assert (enqueued.returncode, enqueued.stdout) == (0, "newest\n"), enqueued.stderr
    worked = subprocess.run([preflight, "worker", "--burst"], env=environment, capture_output=True, text=True)
    assert worked.returncode == 0, worked.stderr
    assert wait_for(client, "newest").status == "finished"


@pytest.mark.slow
def test_the_web_service_answers(newest: Path, settings: Settings, tmp_path: Path) -> None:
    with serving(settings, tmp_path, python=str(newest)) as service:
        assert service.ask("GET", "/readyz").status == 200
        assert service.ask("GET", "/v1/jobs").status == 200
