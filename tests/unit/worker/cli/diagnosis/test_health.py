"""`preflight health`: liveness of a worker or a web service."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tools.faults.machines import free_port
from worker.cli.diagnosis.health import HEARTBEAT_TIMEOUT, Unhealthy, check_health
from worker.config.settings import load
from worker.state.worker_lock import DIRECTORY, WorkerLock

HOST = socket.gethostname()


@pytest.fixture
def web(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server whose /healthz has the status of the test's parameter."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = request.param if isinstance(request.param, tuple) else (request.param, b"")
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silence the log."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_worker_with_heartbeats_is_healthy(tmp_path: Path) -> None:
    """However old its lock is."""
    with WorkerLock(tmp_path, f"{HOST}.1.abc") as presence:
        silence(tmp_path / DIRECTORY / f"{HOST}.1.abc")
        presence.touch()
        assert f"worker {HOST}.1.abc is alive" in check_health(load(state_dir=tmp_path, port=free_port()))


def test_a_worker_says_which_of_its_parts_fail(tmp_path: Path) -> None:
    """It is alive: the part is tried again."""
    settings = load(state_dir=tmp_path, port=free_port())
    with WorkerLock(tmp_path, f"{HOST}.1.abc") as presence:
        presence.touch("Maintainer: ResponseError: \u00e9; Janitor: OSError")
        said = check_health(settings)
        assert "parts of it fail and are tried again (Maintainer: ResponseError: \\xe9; Janitor: OSError)" in said
        presence.touch()
        assert check_health(settings).endswith("s ago)")


@pytest.mark.parametrize("web", [200], indirect=True)
def test_a_worker_without_heartbeats_is_unhealthy(tmp_path: Path, web: int) -> None:
    """Neither a web service nor a second worker beside it helps."""
    with WorkerLock(tmp_path, f"{HOST}.1.abc"), WorkerLock(tmp_path, f"{HOST}.2.def"):
        assert check_health(load(state_dir=tmp_path, port=web)).startswith("2 workers are alive (heartbeat 0.")
        silence(tmp_path / DIRECTORY / f"{HOST}.1.abc")
        with pytest.raises(
            Unhealthy, match=rf"heartbeat of worker {HOST}.1.abc was 60 s ago, but must be at most 30 s ago; restart"
        ):
            check_health(load(state_dir=tmp_path, port=web))


def test_a_dead_predecessor_does_no_harm(tmp_path: Path) -> None:
    """Its file stays until a worker starts."""
    lock = tmp_path / DIRECTORY / f"{HOST}.1.abc"
    lock.parent.mkdir()
    lock.touch()
    silence(lock)
    with pytest.raises(Unhealthy, match=f"heartbeat of worker {HOST}.1.abc was 60 s ago"):
        check_health(load(state_dir=tmp_path, port=free_port()))
    with WorkerLock(tmp_path, f"{HOST}.2.def"):
        assert f"worker {HOST}.2.def is alive" in check_health(load(state_dir=tmp_path, port=free_port()))


def silence(lock: Path) -> None:
    """Let the last heartbeat of a worker be 60 s ago."""
    long_ago = time.time() - 2 * HEARTBEAT_TIMEOUT
    os.utime(lock, (long_ago, long_ago))


def test_workers_of_other_hosts_are_ignored(tmp_path: Path) -> None:
    """Containers may share a volume."""
    with WorkerLock(tmp_path, f"not-{HOST}.1.abc"), pytest.raises(Unhealthy, match="no worker of this host"):
        check_health(load(state_dir=tmp_path, port=free_port()))


@pytest.mark.parametrize(("web", "outcome"), [
    (200, nullcontext()), (500, pytest.raises(Unhealthy, match=r"port \d+ answers 500")),
], indirect=["web"])  # fmt: skip
def test_the_web_service_is_healthy_at_200(tmp_path: Path, web: int, outcome: AbstractContextManager[object]) -> None:
    """It has no lock, only its port."""
    with outcome:
        assert check_health(load(state_dir=tmp_path, port=web)) == f"the web service on port {web} answers"


ENDED = b'{"status": "degraded", "parts": [{"name": "indexer", "state": "restarting", "restarts": 3}]}'


@pytest.mark.parametrize(("web", "trouble"), [
    ((200, ENDED), ", but its indexer is restarting after 3 restarts (its log says why)"),
    ((200, ENDED.replace(b"restarting", b"running")), ""), ((200, b"{" * 100_000), ""), ((200, b"[1]"), ""),
], indirect=["web"])  # fmt: skip
def test_a_part_of_the_web_service_that_ended_is_named(tmp_path: Path, web: int, trouble: str) -> None:
    """The service is alive all the same; whatever another service answers is no trouble of ours."""
    assert check_health(load(state_dir=tmp_path, port=web)) == f"the web service on port {web} answers{trouble}"
