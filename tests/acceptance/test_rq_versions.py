"""The oldest and the newest RQ 2 instead of the installed one: its records, and a job from end to end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from services import ROOT, install_into

VERSIONS = ("2.6.0", "2.12.0")
TESTS = (
    "tests/integration/worker/broker/test_rq_records.py",
    "tests/integration/worker/queue/test_worker.py::test_a_job_is_trained_and_told",
    "tests/integration/worker/queue/test_worker.py::test_a_stop_command_of_rq_cancels",
)


@pytest.mark.parametrize("version", VERSIONS)
def test_another_version_of_rq_works(version: str, tmp_path: Path) -> None:
    target = tmp_path / "rq"
    install_into(target, f"rq=={version}")
    environment = {**os.environ, "PYTHONPATH": f"{target}:{ROOT}"}
    found = subprocess.run(
        [sys.executable, "-c", "from rq.version import VERSION; print(VERSION)"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == version
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *TESTS], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert tests.returncode == 0, tests.stdout[-3000:]
