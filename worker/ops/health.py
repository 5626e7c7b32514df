"""Whether what runs in this container is well: what a platform asks every half minute, without a word to Redis."""

import http.client
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from training.errors import PreflightError
from worker.config.settings import DEFAULT_PORT, Settings
from worker.queue.worker_lock import DIRECTORY

LONGEST_SILENCE: Final = 30.0
"""Seconds between two signs of life; a worker that waits for Redis, or for its job, gives one every few seconds."""
ANSWER_WITHIN: Final = 5.0
"""Seconds for which the web service is waited for."""


class Unhealthy(PreflightError):
    """What runs here hangs, or nothing runs."""

    reason = "unhealthy"


def look(settings: Settings) -> str:
    """Return what was found: a worker of this host that gave a sign of life, else a web service that answers.

    Raises:
        Unhealthy: the newest worker of this host is silent; or there is none, and no web service either.
    """
    beats = _beats(settings.state_dir / DIRECTORY)
    if beats:
        name, at = max(beats.items(), key=lambda beat: beat[1])
        silent = max(0.0, time.time() - at)
        if silent > LONGEST_SILENCE:
            raise Unhealthy(
                f"worker {name} has been silent for {silent:.0f} s, but must give a sign of life within "
                f"{LONGEST_SILENCE:.0f} s; restart it"
            )
        return f"worker {name} gave a sign of life {silent:.1f} s ago"
    port = settings.port or DEFAULT_PORT
    answer = _answer(port)
    if answer is None:
        raise Unhealthy(
            f"no worker of this host has its lock in {settings.state_dir}, and no web service answers on port {port}; "
            "start one, or look at what ended it"
        )
    if answer != http.client.OK:
        raise Unhealthy(f"the web service on port {port} answers {answer}, but must answer 200; restart it")
    return f"the web service on port {port} answers"


def _beats(directory: Path) -> dict[str, float]:
    """Return the workers of this host, by the names of their locks, and when each gave its last sign of life.

    A volume may be shared with workers of other hosts, and a container's host name is its own.
    """
    found: dict[str, float] = {}
    for path in directory.glob(f"{socket.gethostname()}.*"):
        with suppress(OSError):  # it has just ended
            found[path.name] = path.stat().st_mtime
    return found


def _answer(port: int) -> int | None:
    """Return the status of `/healthz`; None where nobody answers."""
    for host in ("127.0.0.1", "::1"):
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_WITHIN)
        try:
            connection.request("GET", "/healthz", headers={"host": "localhost"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
    return None
