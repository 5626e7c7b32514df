"""`preflight health`: what a platform asks about a worker or a web service."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from worker.config.settings import Settings, load
from worker.ops.health import LONGEST_SILENCE, Unhealthy, look
from worker.queue.worker_lock import DIRECTORY, Presence

HOST = socket.gethostname()


def settings_of(state_dir: Path, port: int) -> Settings:
    return load(state_dir=state_dir, port=port)


@pytest.fixture
def nobody() -> int:
    """A port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def web(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of something that answers each request with the status of the test's parameter."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(request.param if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_a_worker_that_gives_signs_of_life_is_well(tmp_path: Path, nobody: int) -> None:
    """However old its lock is."""
    with Presence(tmp_path, f"{HOST}.1.abc") as presence:
        long_ago = time.time() - 2 * LONGEST_SILENCE
        os.utime(tmp_path / DIRECTORY / f"{HOST}.1.abc", (long_ago, long_ago))
        presence.beat()
        assert f"worker {HOST}.1.abc gave a sign of life" in look(settings_of(tmp_path, nobody))


@pytest.mark.parametrize("web", [200], indirect=True)
def test_a_silent_worker_is_not(tmp_path: Path, web: int) -> None:
    """A web service beside it does not make it well; a dead predecessor does not make its successor sick."""
    with Presence(tmp_path, f"{HOST}.1.abc"):
        long_ago = time.time() - 2 * LONGEST_SILENCE
        os.utime(tmp_path / DIRECTORY / f"{HOST}.1.abc", (long_ago, long_ago))
        with pytest.raises(
            Unhealthy, match=rf"{HOST}.1.abc has been silent for 60 s, but must .* within 30 s; restart"
        ):
            look(settings_of(tmp_path, web))
        with Presence(tmp_path, f"{HOST}.2.def"):
            assert f"{HOST}.2.def" in look(settings_of(tmp_path, web))


def test_a_worker_of_another_host_says_nothing_of_this_one(tmp_path: Path, nobody: int) -> None:
    """Containers that share a volume look at their own."""
    with Presence(tmp_path, f"not-{HOST}.1.abc"), pytest.raises(Unhealthy, match="no worker of this host"):
        look(settings_of(tmp_path, nobody))


@pytest.mark.parametrize("web", [200], indirect=True)
def test_a_web_service_that_answers_is_well(tmp_path: Path, web: int) -> None:
    """It has no lock, only its port."""
    assert look(settings_of(tmp_path, web)) == f"the web service on port {web} answers"


@pytest.mark.parametrize("web", [500], indirect=True)
def test_a_web_service_that_fails_is_not(tmp_path: Path, web: int) -> None:
    """Only 200 will do."""
    with pytest.raises(Unhealthy, match=f"port {web} answers 500"):
        look(settings_of(tmp_path, web))
