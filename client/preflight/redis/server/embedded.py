"""Embedded Redis: a real server on a private socket, for the demo and for tests."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from preflight.errors import PreflightError
from preflight.redis.server.program import find_program, missing_server

START_TIMEOUT: Final = 10.0
"""Longest wait for a start, in seconds; a server starts in about ten milliseconds."""

MAX_SOCKET_PATH: Final = 107
"""Most bytes of a Unix socket's path, which ends with a zero byte in `sockaddr_un.sun_path` (unix(7))."""


class NoRedisServer(PreflightError):
    """There is no redis-server to start."""

    reason = "no_redis_server"


def executable() -> Path:
    """Return the redis-server or valkey-server on PATH, else the one of an installed package.

    Raises:
        NoRedisServer: there is none that is new enough.
    """
    found = find_program()
    if found is None:
        raise NoRedisServer(missing_server())
    return Path(found)


@contextmanager
def redis_server(*options: str) -> Iterator[str]:
    """Run a server without a port, with `options` of redis-server; yields its `unix://` URL, deletes its directory.

    Raises:
        NoRedisServer: there is none, it does not start, or the temporary directory's path is too long for a socket.
    """
    with tempfile.TemporaryDirectory(prefix="preflight-redis-") as directory:
        path = Path(directory) / "socket"
        length = len(os.fsencode(path))
        if length > MAX_SOCKET_PATH:
            raise NoRedisServer(
                f"the socket of Redis would be {path}, {length} bytes, but a path of a Unix socket has at most "
                f"{MAX_SOCKET_PATH}; set TMPDIR to a shorter directory"
            )
        with (Path(directory) / "log").open("wb") as log:
            server = subprocess.Popen(
                [str(executable()), "--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700",
                 "--dir", directory, "--save", "", *options],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        try:
            _wait_until_ready(server, path, Path(directory) / "log")
            yield f"unix://{path}"
        finally:
            server.terminate()
            server.wait()


def _wait_until_ready(server: "subprocess.Popen[bytes]", path: Path, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and server.poll() is None:
        if _answers(path):
            return
        time.sleep(0.005)
    last_line = log.read_text(errors="replace").strip().rpartition("\n")[2]
    raise NoRedisServer(f"{server.args!r} did not start: {last_line}")


def _answers(path: Path) -> bool:
    """Whether the server is ready; one that asks for a password is."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
