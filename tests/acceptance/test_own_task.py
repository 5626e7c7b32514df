"""A user's package beside the worker: its model works like the built-in ones, on imported pictures."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.worker.services import ROOT, install_into

PREFLIGHT = str(Path(sys.executable).parent / "preflight")
TIMEOUT = 120
JOB = [PREFLIGHT, "train", "--dataset", "shapes", "--model", "shapes-net", "--epochs=6", "--job-id=mine", "--json"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed example package, for PYTHONPATH."""
    directory = tmp_path_factory.mktemp("own") / "site"
    install_into(directory, str(ROOT / "deploy/examples/own_task"))
    return directory


@pytest.mark.slow
@pytest.mark.usefixtures("signals_heard")
def test_it_is_calibrated_trained_checkpointed_and_exported(site: Path, tmp_path: Path) -> None:
    """After an interruption it resumes from its checkpoint, and ends with a model and its manifest."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        **{f"PREFLIGHT_{name}_DIR": str(tmp_path / name) for name in ("DATA", "ARTIFACT", "CACHE", "STATE")},
        "PREFLIGHT_CHECKPOINT_SECONDS": "0.05",
        "PREFLIGHT_LOG_FORMAT": "json",
        "PREFLIGHT_LOG_LEVEL": "debug",
    }
    for command in (
        [sys.executable, "-m", "own_task.shapes", str(tmp_path / "shapes")],
        [PREFLIGHT, "data", "add", "shapes", str(tmp_path / "shapes")],
    ):
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=TIMEOUT)
    log = tmp_path / "log"
    with log.open("wb") as errors:
        first = subprocess.Popen(JOB, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        deadline = time.monotonic() + TIMEOUT
        while "checkpoint_saved" not in log.read_text() and time.monotonic() < deadline and first.poll() is None:
            time.sleep(0.02)
        first.send_signal(signal.SIGINT)
        assert first.wait(TIMEOUT) == 130, log.read_text()[-2000:]
    second = subprocess.run(JOB, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert second.returncode == 0, second.stderr[-2000:]
    records = [json.loads(line) for line in (log.read_text() + second.stderr).splitlines() if line.startswith("{")]
    events = {str(record.get("type", record.get("event"))) for record in records}
    assert {"calibration_trial", "calibration_winner", "checkpoint_saved", "job_resumed"} <= events
    result = json.loads(second.stdout)
    assert result["test_accuracy"] > 0.9
    artifact = Path(result["artifact"])
    manifest = json.loads((artifact / "manifest.json").read_text())
    assert (manifest["spec"]["dataset"], manifest["spec"]["model"]) == ("shapes@1", "shapes-net")
    assert result["class_names"] == ["cross", "disc", "square", "triangle"]
    assert (artifact / "model.safetensors").stat().st_size > 200_000
