"""A Redis Cluster is refused before anything is written to it; on a real one of a single node."""

import random
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from redis import Redis
from redis.exceptions import ClusterError
from support.web.service import serving
from support.worker.services import StartWorker, digits_job, wait_until

from preflight import Client
from preflight.cli.app import main
from preflight.redis.server.embedded import redis_server
from worker.config.settings import Settings


def port_of_a_node() -> int:
    """Return a free port whose cluster bus, 10,000 above it, is free, too."""
    for port in random.sample(range(20_000, 50_000), 100):
        with socket.socket() as own, socket.socket() as bus:
            try:
                own.bind(("127.0.0.1", port))
                bus.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            return port
    raise AssertionError("none of 100 ports is free")


@pytest.fixture(scope="module", params=["without slots", "with all slots"])
def cluster(request: pytest.FixtureRequest) -> Iterator[str]:
    """A node without slots, and one with all of them."""
    port = str(port_of_a_node())
    with redis_server("--cluster-enabled", "yes", "--port", port, "--bind", "127.0.0.1") as url:
        if request.param == "with all slots":
            node = Redis.from_url(url)
            node.execute_command("CLUSTER", "ADDSLOTS", *range(16_384))
            wait_until(lambda: serves(node))
        yield url


def serves(node: Redis) -> bool:
    try:
        node.get("x")
    except ClusterError:
        return False
    return True


def test_a_worker_does_not_start(cluster: str, start_worker: StartWorker) -> None:
    """One sentence and exit code 1, at once."""
    worker = start_worker("--burst", environment={"PREFLIGHT_REDIS_URL": cluster})
    assert worker.wait() == 1
    (line,) = [line for line in worker.output().splitlines() if line.startswith("preflight: ")]
    assert "is a cluster, but preflight's scripts use keys of several slots; set REDIS_URL to a server" in line


def test_a_client_enqueues_nothing(cluster: str) -> None:
    for _ in range(2):
        with pytest.raises(ClusterError, match="is a cluster"):
            Client(cluster).enqueue(digits_job(job_id="j"))
    assert Redis.from_url(cluster).dbsize() == 0


@pytest.mark.parametrize("arguments", [["enqueue"], ["enqueue", "--ensure"], ["doctor"], ["serve", "--port", "1"]])
def test_commands_name_the_cluster(
    cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.setenv("PREFLIGHT_REDIS_URL", cluster)
    monkeypatch.setenv("PREFLIGHT_OUTBOX_DIR", str(tmp_path))
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 1
    (line,) = [line for line in done.output.splitlines() if "is a cluster" in line]
    assert line.endswith("set REDIS_URL to a server without cluster-enabled")


def test_the_web_service_names_a_cluster_that_comes_later(cluster: str, settings: Settings, tmp_path: Path) -> None:
    """Redis is away while the service starts; then a job is refused with 503."""
    socket_path = tmp_path / "redis.sock"
    with serving(settings.model_copy(update={"redis_url": f"unix://{socket_path}"}), tmp_path) as service:
        socket_path.symlink_to(urlsplit(cluster).path)
        answer = service.ask("POST", "/v1/jobs", digits_job(job_id="j").model_dump(mode="json", exclude_unset=True))
        assert answer.status == 503
        assert b"is a cluster" in answer.body
