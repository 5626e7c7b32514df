"""The wheels without extras, in a new virtual environment away from the source."""

import json
import subprocess
from pathlib import Path

import pytest
from support.worker.services import RunWorker, Wheels, new_environment, wait_for

from preflight import Client
from worker.config.settings import Settings


@pytest.fixture(scope="module")
def environment(wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a virtual environment with the built wheels and their base dependencies."""
    return new_environment(tmp_path_factory.mktemp("base"), str(wheels.client), str(wheels.worker))


def test_it_brings_no_torch(environment: Path) -> None:
    """Only what a producer needs, and the packages are typed."""
    program = (
        "import importlib.util as u, pathlib, preflight, worker, training, calibration;"
        "print([u.find_spec(n) is None for n in ('torch', 'numpy', 'safetensors', 'psutil')],"
        "[(pathlib.Path(p.__file__).parent / 'py.typed').exists() for p in (preflight, worker, training, calibration)])"
    )
    done = subprocess.run([str(environment), "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[True,", "True,", "True,", "True]", "[True,", "True,", "True,", "True]"]


def test_it_enqueues_and_watches(
    environment: Path, settings: Settings, client: Client, tmp_path: Path, run_worker: RunWorker
) -> None:
    preflight = str(environment.parent / "preflight")
    variables = {"PREFLIGHT_REDIS_URL": settings.redis_url, "HOME": str(tmp_path)}
    job = ["--dataset", "digits", "--batch-size", "32", "--job-id", "from-afar", "--no-calibrate"]
    enqueued = subprocess.run([preflight, "enqueue", *job], env=variables, capture_output=True, text=True)
    assert (enqueued.returncode, enqueued.stdout) == (0, "from-afar\n"), enqueued.stderr
    run_worker()
    assert wait_for(client, "from-afar").status == "finished"
    watched = subprocess.run([preflight, "watch", "from-afar"], env=variables, capture_output=True, text=True)
    assert watched.returncode == 0, watched.stderr
    assert "test accuracy" in watched.stdout


def test_it_says_what_training_needs(environment: Path, settings: Settings, tmp_path: Path) -> None:
    """`train` and `doctor` name the extra to install, in one sentence."""
    preflight = str(environment.parent / "preflight")
    variables = {"PREFLIGHT_REDIS_URL": settings.redis_url, "HOME": str(tmp_path)}
    trained = subprocess.run([preflight, "train", "--dataset", "digits"], env=variables, capture_output=True, text=True)
    assert trained.returncode in (1, 2)
    assert "Traceback" not in trained.stderr
    assert "[train]" in trained.stderr.splitlines()[-1]
    examined = subprocess.run([preflight, "doctor", "--json"], env=variables, capture_output=True, text=True)
    findings = {line["name"]: line for line in map(json.loads, examined.stdout.splitlines())}
    assert examined.returncode == 1
    assert findings["torch"]["status"] == "fail"
    assert "[train]" in findings["torch"]["detail"]
