"""Redis dies, is cut off, or comes back empty, while real workers train."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.worker.services import StartWorker, digits_job, wait_for, wait_until
from support.worker.survival import assert_nothing_duplicated, until_checkpoint

from preflight import Client
from tools.faults.machines import Proxy, RedisServer
from worker.config.settings import Settings


@pytest.fixture
def proxy(server: RedisServer, tmp_path: Path) -> Iterator[Proxy]:
    """A proxy to Redis that can be cut."""
    proxy = Proxy(tmp_path / "proxy.sock", server.path)
    proxy.open()
    yield proxy
    proxy.cut()


@pytest.fixture
def client(server: RedisServer, settings: Settings, tmp_path: Path) -> Client:
    """A client of that server, with an outbox."""
    return Client(server.url, queue=settings.queue, outbox=tmp_path / "outbox")


def test_a_job_that_ends_without_redis_is_finished(
    proxy: Proxy, client: Client, settings: Settings, start_worker: StartWorker
) -> None:
    client.enqueue(digits_job(job_id="job", epochs=10))
    worker = start_worker(environment={"PREFLIGHT_REDIS_URL": proxy.url})
    until_checkpoint(client, "job", 1)
    proxy.cut()
    wait_until(lambda: any((settings.artifact_dir / "~staging").glob("job/1/manifest.json")), seconds=60)
    time.sleep(2)
    assert not (settings.artifact_dir / "job").exists()
    assert worker.process.poll() is None
    proxy.open()
    state = wait_for(client, "job")
    assert (state.status, state.attempt) == ("finished", 1)
    assert_nothing_duplicated(client, "job")
    assert (settings.artifact_dir / "job" / "manifest.json").exists()


def test_without_redis_ensure_keeps_the_job(server: RedisServer, client: Client, start_worker: StartWorker) -> None:
    server.kill()
    enqueued = client.enqueue(digits_job(job_id="job"), ensure=True)
    assert (enqueued.created, enqueued.waiting) == (False, True)
    server.start()
    assert client.status("job").status == "unknown"
    assert client.resubmit() == ["job"]
    assert client.status("job").status == "queued"
    start_worker("--burst", environment={"PREFLIGHT_REDIS_URL": server.url})
    assert wait_for(client, "job").status == "finished"
