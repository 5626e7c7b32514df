"""docker-compose.yml as it is, under a separate project name, and its state as seen from outside."""

import http.client
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Final, Self

from pydantic import JsonValue, TypeAdapter

ROOT: Final = Path(__file__).resolve().parents[3]
IMAGE: Final = "preflight"
LONGEST_COMMAND: Final = 1800.0
"""Seconds for one command of the container engine, a build among them."""
LONGEST_JOB: Final = 600.0
"""Seconds that a job of a check may take."""
LOOK_EVERY: Final = 0.2

Answer = dict[str, JsonValue]
ANSWER: Final = TypeAdapter(Answer)


class Failed(Exception):
    """An expected result did not happen."""


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Docker:
    """The container engine, by its command line."""

    command: str

    def __call__(self, *words: str) -> str:
        """Return the output of a command; raises `Failed` where it failed."""
        done = self.run(*words)
        if done.code != 0:
            raise Failed(f"{' '.join((self.command, *words))} exited with {done.code}: {done.err.strip()[-600:]}")
        return done.out.strip()

    def run(self, *words: str, environment: Mapping[str, str] | None = None) -> Done:
        """Run a command in the repository's root."""
        done = subprocess.run(
            [self.command, *words], cwd=ROOT, env={**os.environ, **(environment or {})}, capture_output=True, text=True,
            timeout=LONGEST_COMMAND, check=False,
        )  # fmt: skip
        return Done(done.returncode, done.stdout, done.stderr)


class Stack:
    """The services of docker-compose.yml, up for as long as this context lasts; its volumes are removed with it."""

    def __init__(self, docker: Docker, name: str, *, cpus: float, memory: str, port: int) -> None:
        """Name the project, and set the limits of its workers."""
        self.docker = docker
        self.name = name
        self._port = port
        self._environment = {
            "PREFLIGHT_CPUS": f"{cpus:g}", "PREFLIGHT_MEMORY": memory, "PREFLIGHT_PORT": str(port),
        }  # fmt: skip
        self._token = ""

    def __enter__(self) -> Self:
        self._remove()  # the leftovers of a killed run: a job whose model lies there would not be trained
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            print(self.compose("logs", "worker", check=False)[-4000:])
        self._remove()

    def _remove(self) -> None:
        """Remove all containers of the project, of scaled services too, and then its networks and volumes."""
        left = self.docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={self.name}").split()
        if left:
            self.docker.run("rm", "-f", *left)
        self.compose("down", "-v", check=False)
        left = [name for name in self.docker("volume", "ls", "-q").split() if name.startswith(f"{self.name}_")]
        if left:  # podman-compose leaves behind that of Redis
            self.docker("volume", "rm", *left)

    def compose(self, *words: str, check: bool = True) -> str:
        """Return the output of `docker compose`."""
        done = self.docker.run("compose", "-p", self.name, *words, environment=self._environment)
        if check and done.code != 0:
            raise Failed(f"compose {' '.join(words)} exited with {done.code}: {done.err.strip()[-600:]}")
        return done.out + (done.err if words[0] == "logs" else "")

    def containers(self, service: str) -> Sequence[str]:
        """Return the ids of the running containers of a service."""
        labels = (f"com.docker.compose.project={self.name}", f"com.docker.compose.service={service}")
        return self.docker("ps", "-q", *(word for label in labels for word in ("--filter", f"label={label}"))).split()

    def container(self, service: str) -> str:
        """Return the id of the one container of a service."""
        (found,) = self.containers(service)
        return found

    def inside(self, service: str, *command: str) -> Done:
        """Run a command in the container of a service."""
        return self.docker.run("exec", self.container(service), *command)

    # --- from outside, over HTTP

    def token(self) -> str:
        """Return the token of the web service, once it has been made."""
        if not self._token:
            done = self.inside("web", "cat", "/run/preflight/api_token")
            if done.code != 0:
                raise Failed(f"there is no token yet: {done.err}")
            self._token = done.out.strip()
        return self._token

    def ask(self, method: str, path: str, body: Answer | None = None) -> tuple[int, Answer]:
        """Return status and answer of the web service; raises `OSError` or `Failed` where it is not up."""
        headers = {"authorization": f"Bearer {self.token()}", "content-type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, ANSWER.validate_json(response.read())
        finally:
            connection.close()

    def enqueue(self, job_id: str, **fields: JsonValue) -> None:
        """Have a job accepted, however long the services take to come up."""
        job: Answer = {"type": "preflight.train.v1", "job_id": job_id, "dataset": "mnist", **fields}

        def accepted() -> bool:
            try:
                status, answer = self.ask("POST", "/v1/jobs", job)
            except (OSError, http.client.HTTPException, Failed, ValueError):
                return False
            if status not in (201, 409, 503):
                raise Failed(f"the job was answered with {status}: {answer}")
            return status == 201

        wait_for(accepted, f"{job_id} to be accepted", within=120)

    def state(self, job_id: str) -> Answer:
        """Return the state of a job."""
        return self.ask("GET", f"/v1/jobs/{job_id}")[1]

    def ended(self, job_id: str) -> Answer:
        """Return the state of a job once it has ended; raises `Failed` unless it is finished."""
        wait_for(lambda: self._is_over(job_id), f"{job_id} to end", LONGEST_JOB, every=1.0)
        found = self.state(job_id)
        if found["status"] != "finished":
            raise Failed(f"{job_id} is {found['status']}: {found.get('message')}")
        return found

    def _is_over(self, job_id: str) -> bool:
        """Whether a job has ended; while the web service does not reach Redis nobody knows."""
        return self.state(job_id).get("status", "running") not in ("queued", "running")

    def events(self, job_id: str) -> Sequence[Answer]:
        """Return every event of a job that has ended."""
        return list(self._follow(job_id))

    def watched(self, job_id: str) -> Sequence[Answer]:
        """Return the events of a job that has not ended: a list that grows."""
        events: list[Answer] = []
        Thread(target=lambda: events.extend(self._follow(job_id)), daemon=True).start()
        return events

    def _follow(self, job_id: str) -> Iterator[Answer]:
        """Yield the data of server-sent events, until `end` or until the service ends."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", f"/v1/jobs/{job_id}/events", headers={"authorization": f"Bearer {self.token()}"})
            for line in connection.getresponse():
                if line.startswith(b"data: ") and line != b"data: {}\n":
                    yield ANSWER.validate_json(line.removeprefix(b"data: "))
                if line == b"event: end\n":
                    return
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()


def wait_for(happened: Callable[[], bool], what: str, within: float, every: float = LOOK_EVERY) -> None:
    """Wait until something has happened; raises `Failed` where it takes longer than `within` seconds."""
    deadline = time.monotonic() + within
    while not happened():
        if time.monotonic() > deadline:
            raise Failed(f"waited {within:.0f} s for {what}")
        time.sleep(every)
