"""Health check of this container's worker or web service, without Redis."""

import http.client
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field, ValidationError

from preflight.errors import PreflightError
from preflight.files.locks import is_locked
from worker.config.settings import DEFAULT_PORT, Settings
from worker.state.worker_lock import DIRECTORY, MAX_BYTES

HEARTBEAT_TIMEOUT: Final = 30.0
"""Seconds; a worker updates its lock every few seconds, also while it waits for Redis or its job."""
HTTP_TIMEOUT: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 * 1024


class Unhealthy(PreflightError):
    """The worker or web service hangs, or none runs."""

    reason = "unhealthy"


def check_health(settings: Settings) -> str:
    """Return which workers of this host, or else which web service, are alive; raises `Unhealthy`.

    Each worker whose process exists must have a heartbeat: one that was killed is replaced, one that hangs is not.
    """
    heartbeats = _heartbeats(settings.state_dir / DIRECTORY)
    if heartbeats:
        name, at = heartbeats[0]
        silent = max(0.0, time.time() - at)
        if silent > HEARTBEAT_TIMEOUT:
            raise Unhealthy(
                f"the last heartbeat of worker {name} was {silent:.0f} s ago, but must be at most "
                f"{HEARTBEAT_TIMEOUT:.0f} s ago; restart it"
            )
        alive = f"worker {name} is" if len(heartbeats) == 1 else f"{len(heartbeats)} workers are"
        failing = [text for name, _ in heartbeats if (text := _failing(settings.state_dir / DIRECTORY / name))]
        trouble = f", but parts of it fail and are tried again ({failing[0]}); its log says why" if failing else ""
        return f"{alive} alive (heartbeat {silent:.1f} s ago){trouble}"
    port = settings.port or DEFAULT_PORT
    found = ask_web(port)
    if found is None:
        raise Unhealthy(
            f"no worker of this host has a lock in {settings.state_dir}, and no web service answers on port {port}; "
            "start one, or check the log for why it ended"
        )
    if found.status != http.client.OK:
        raise Unhealthy(f"the web service on port {port} answers {found.status}, but must answer 200; restart it")
    return f"the web service on port {port} answers{f', but {found.trouble}' if found.trouble else ''}"


def _heartbeats(directory: Path) -> list[tuple[str, float]]:
    """Return the names and last heartbeats of the live workers of this host, the oldest first.

    Where none is known to live, return that of the newest one. Other hosts may share the volume.
    """
    found: dict[str, float] = {}
    live: set[str] = set()
    for path in directory.glob(f"{socket.gethostname()}.*"):
        with suppress(OSError):  # the worker has just ended
            found[path.name] = path.stat().st_mtime
            live |= {path.name} if is_locked(path) else set()
    ordered = sorted(found.items(), key=lambda heartbeat: heartbeat[1])
    return [heartbeat for heartbeat in ordered if heartbeat[0] in live] or ordered[-1:]


def _failing(path: Path) -> str:
    """Return the failing parts that a worker's lock names; empty where all run."""
    with suppress(OSError), path.open("rb") as file:
        return ascii(file.read(MAX_BYTES).decode(errors="replace"))[1:-1]
    return ""


@dataclass(frozen=True, slots=True)
class WebHealth:
    """State that a web service reports."""

    status: int
    """HTTP status of `/healthz`."""
    trouble: str | None
    """Clause about parts that have ended and are started again; empty: each runs; None: it is another service."""


class _Part(BaseModel):
    name: str = Field(max_length=80)
    state: str = Field(max_length=80)
    restarts: int


class _Health(BaseModel):
    status: Literal["ok", "degraded"]
    parts: tuple[_Part, ...] = Field((), max_length=100)


def ask_web(port: int) -> WebHealth | None:
    """Return the state that the web service on a port of this host reports; None: no answer."""
    for host in ("127.0.0.1", "::1"):
        connection = http.client.HTTPConnection(host, port, timeout=HTTP_TIMEOUT)
        try:
            connection.request("GET", "/healthz", headers={"host": "localhost"})
            response = connection.getresponse()
            return WebHealth(response.status, _trouble(response.read(MAX_ANSWER_BYTES)))
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
    return None


def _trouble(answer: bytes) -> str | None:
    """Return the parts that do not run, or were just started again; None for the answer of another service."""
    try:
        parts = _Health.model_validate_json(answer).parts
    except ValidationError:
        return None
    return " and ".join(
        f"its {ascii(part.name)[1:-1]} is {ascii(part.state)[1:-1]} after {part.restarts} restarts (its log says why)"
        for part in parts if part.state != "running"
    )  # fmt: skip
