"""A service with its page, with a separate worker and Redis, and the jobs that the page shows."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis import Redis
from support.web.service import Service, service_of
from support.worker.services import digits_job, wait_for, wait_until

from preflight import Client
from preflight.redis import keys
from preflight.redis.server.embedded import redis_server
from worker.config.settings import Settings, service_environment

LOWEST_PRIORITY: Final = ("nice", "-n", "19")
"""A training under way is not to take the browser's processor time."""


@dataclass(frozen=True, slots=True)
class Site:
    """A running service, and access to its jobs."""

    service: Service
    client: Client
    redis: Redis
    folder: Path
    data_dir: Path

    def finish(self, job_id: str, epochs: int) -> None:
        """Calibrate and train; returns when the report is there."""
        self.client.enqueue(digits_job(job_id=job_id, epochs=epochs, calibrate=True, plan={}))
        wait_for(self.client, job_id, "finished")
        self._wait_for_event(job_id, "report_ready")

    def begin(self, job_id: str) -> None:
        """Let a long training run; returns when it has ended an epoch."""
        self.client.enqueue(digits_job(job_id=job_id, epochs=10_000))
        self._wait_for_event(job_id, "epoch_done")

    def _wait_for_event(self, job_id: str, kind: str) -> None:
        wait_until(lambda: kind in str(self.redis.xrange(keys.events(job_id))), seconds=90)


@contextmanager
def running_site(
    priority: Sequence[str] = (), data_dir: Path | None = None, **environment: str
) -> Iterator[Site]:  # fmt: skip
    """Run a Redis, a service and a worker with this priority, data directory and these environment variables."""
    with redis_server() as url, tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        settings = Settings(
            redis_url=url, data_dir=data_dir or Path(os.environ.get("PREFLIGHT_DATA_DIR", folder / "data")),
            artifact_dir=folder / "artifacts", cache_dir=folder / "cache", state_dir=folder / "state",
        )  # fmt: skip
        service = service_of(settings, folder)
        with (folder / "worker.log").open("wb") as log:
            worker = subprocess.Popen(
                [*priority, sys.executable, "-P", "-m", "worker.cli", "worker"],
                env={**service_environment(settings), **environment},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            service.start()
            yield Site(service, Client(url, queue=settings.queue), Redis.from_url(url), folder, settings.data_dir)
        finally:
            service.kill()
            worker.terminate()
            worker.wait()
