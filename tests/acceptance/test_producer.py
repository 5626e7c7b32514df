"""A producer with plain RQ: the lines of a page in a separate environment."""

import re
import subprocess
from pathlib import Path

import pytest
from support.worker.services import ROOT, StartWorker, new_environment, wait_for

from preflight import Client
from worker.config.settings import Settings


@pytest.fixture(scope="module")
def producer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a virtual environment with only rq and redis."""
    return new_environment(tmp_path_factory.mktemp("producer"), "rq", "redis")


@pytest.mark.slow
def test_six_lines_of_plain_rq_are_trained(
    producer: Path, settings: Settings, client: Client, mnist_dir: Path, start_worker: StartWorker
) -> None:
    """Exactly the page's lines, but for the address of Redis."""
    (lines,) = re.findall(
        r"```python\n(from redis.*?)```", (ROOT / "docs/tutorial/your-service.md").read_text(), re.DOTALL
    )
    assert len(lines.split("\n")) - lines.count("\n\n") - 1 == 6
    program = lines.replace("redis://localhost:6379/0", settings.redis_url)
    assert program != lines
    produced = subprocess.run([str(producer), "-I", "-c", program], capture_output=True, text=True, check=True)
    job_id = produced.stdout.strip()
    worker = start_worker("--burst", environment={"PREFLIGHT_DATA_DIR": str(mnist_dir)})
    state = wait_for(client, job_id)
    assert state.status == "finished", state
    assert state.test_accuracy is not None
    assert state.test_accuracy >= 0.989
    assert worker.wait() == 0


def test_the_producer_has_no_preflight(producer: Path) -> None:
    for name in ("worker", "torch", "pydantic"):
        assert subprocess.run([str(producer), "-I", "-c", f"import {name}"], capture_output=True).returncode == 1
