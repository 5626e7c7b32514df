"""Schemathesis against `preflight serve`: what its OpenAPI description promises, it keeps."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from web import TOKEN, serving

from worker.client import Client
from worker.config.settings import Settings

SEED = 20


@contextmanager
def cancelling(redis_url: str) -> Iterator[None]:
    """Cancel every job soon after it was enqueued: streams of events end with their jobs."""
    client, over = Client(redis_url), threading.Event()

    def cancel() -> None:
        while not over.wait(0.1):
            for job_id in client.ids(active=True):
                client.cancel(job_id)

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("token", "phases"),
    [
        pytest.param(None, "coverage,fuzzing,stateful", id="open"),
        pytest.param(TOKEN, "fuzzing", id="token", marks=pytest.mark.slow),
    ],
)
def test_the_service_keeps_its_description(redis_url: str, tmp_path: Path, token: str | None, phases: str) -> None:
    """Every check of schemathesis, at a fixed seed: no failure, no error, no traceback in the log."""
    Redis.from_url(redis_url).flushall()
    header = [] if token is None else ["--header", f"Authorization: Bearer {token}"]
    settings = Settings.model_validate({"redis_url": redis_url, "api_token": token})
    with serving(settings, tmp_path) as service, cancelling(redis_url):
        found = subprocess.run(
            [Path(sys.executable).parent / "schemathesis", "run", f"http://127.0.0.1:{service.port}/openapi.json",
             "--checks", "all", "--phases", phases, "--max-examples", "6", "--seed", str(SEED),
             "--generation-database", "none", "--request-timeout", "60", "--suppress-health-check", "all",
             "--no-color", *header],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
    print(found.stdout)
    assert found.returncode == 0, found.stdout + found.stderr
    (cases,) = re.findall(r"(\d+) generated, \d+ passed", found.stdout)
    assert int(cases) > 20
    assert "Traceback" not in service.log.read_text()
