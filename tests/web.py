"""`preflight serve` as a process of its own, and what a test asks it."""

import http.client
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from services import wait_until

from worker.config.settings import Settings, service_environment

JSON = {"content-type": "application/json"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> object:
        return json.loads(self.body)

    def __getitem__(self, name: str) -> object:
        payload = self.json
        assert isinstance(payload, dict)
        return payload[name]


@dataclass(frozen=True, slots=True)
class Service:
    """A running `preflight serve`."""

    port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    def ask(
        self, method: str, path: str, body: bytes | object = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request; what is no bytes goes as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(
                method, path, data, dict(headers if headers is not None else JSON if method == "POST" else {})
            )
            response = connection.getresponse()
            return Answer(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )

    @contextmanager
    def events(self, job_id: str, **headers: str) -> Iterator[Iterator[tuple[str, str, str]]]:
        """Follow a job; yields id, type and data of each event."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("GET", f"/v1/jobs/{job_id}/events", headers=headers)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield _parsed(response)


def _parsed(response: http.client.HTTPResponse) -> Iterator[tuple[str, str, str]]:
    fields: dict[str, str] = {}
    for raw in response:
        name, _, value = raw.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "event" in fields:
            yield fields.get("id", ""), fields["event"], fields["data"]
            fields = {}


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextmanager
def serving(
    settings: Settings, directory: Path, *options: str, port: int | None = None, **environment: str
) -> Iterator[Service]:
    """Run the service until the context is left; it must end well when it is told to stop."""
    port, log = port or free_port(), directory / f"serve-{secrets.token_hex(4)}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", "serve", "--port", str(port), *options],
            env={**service_environment(settings), **environment}, stdout=output, stderr=output,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    service = Service(port, process, log)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return service.ask("GET", "/healthz").status == 200
        except OSError:
            return False

    try:
        wait_until(answers)
        yield service
    finally:
        process.terminate()
        assert process.wait(20) == 0, log.read_text()
