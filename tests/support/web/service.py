"""`preflight serve` as a process, and requests to it."""

import http.client
import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from support.worker.services import wait_until
from tools.faults.machines import free_port
from worker.config.settings import Settings, service_environment

JSON = {"content-type": "application/json"}
JOB = {"type": "preflight.train.v1", "dataset": "digits", "model": "cnn"}
TOKEN = "a-token-of-enough-letters"  # noqa: S105 - it opens nothing


OBJECTS = TypeAdapter(list[dict[str, object]])


@dataclass(frozen=True, slots=True)
class Answer:
    """A response."""

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

    @property
    def objects(self) -> list[dict[str, object]]:
        assert self.status == 200, self.body
        return OBJECTS.validate_json(self.body)


@dataclass(slots=True)
class Service:
    """A `preflight serve`, on a port that it keeps when it is started again."""

    environment: Mapping[str, str]
    log: Path
    options: Sequence[str] = ()
    port: int = field(default_factory=free_port)
    python: str = sys.executable
    process: "subprocess.Popen[bytes]" = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [self.python, "-P", "-m", "worker.cli", "serve", "--port", str(self.port), *self.options],
                env=self.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        wait_until(self._answers, seconds=90)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.ask("GET", "/healthz").status == 200
        except OSError:
            return False

    def ask(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send one request; a body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        if headers is None:
            headers = JSON if method == "POST" else {}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request(method, path, data, dict(headers))
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, received, response.read())

    def enqueue(self, job_id: str, **fields: object) -> Answer:
        return self.ask("POST", "/v1/jobs", {**JOB, "job_id": job_id, **fields})

    def connect(self) -> socket.socket:
        """Open a connection, which has sent nothing yet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    @contextmanager
    def events(self, job_id: str, query: str = "", **headers: str) -> Iterator[Iterator[tuple[str, str, str]]]:
        """Follow a job; yields id, type and data of each event."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)) as connection:
            connection.request("GET", f"/v1/jobs/{job_id}/events{query}", headers=headers)
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


def service_of(settings: Settings, folder: Path, *options: str, port: int | None = None, **environment: str) -> Service:
    """Return a service with these settings, not started."""
    log = folder / f"serve-{secrets.token_hex(4)}.log"
    return Service({**service_environment(settings), **environment}, log, options, port or free_port())


@contextmanager
def serving(
    settings: Settings, directory: Path, *options: str, port: int | None = None, python: str = sys.executable,
    **environment: str,
) -> Iterator[Service]:  # fmt: skip
    """Run a service; it must exit with 0 on SIGTERM."""
    service = service_of(settings, directory, *options, port=port, **environment)
    service.python = python
    service.start()
    try:
        yield service
    finally:
        service.process.terminate()
        assert service.process.wait(20) == 0, service.log.read_text()
