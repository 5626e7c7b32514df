"""What surrounds a worker and can fail by itself: a redis-server with an append-only file, and the way to it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

from worker.broker.embedded_redis import executable

READY_WITHIN: Final = 20.0
"""Seconds for a server to load its append-only file and answer."""
CHUNK: Final = 1 << 16


class RedisServer:
    """A redis-server on a unix socket that syncs every write: it can be killed, restarted, emptied and halted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "redis.sock"
        self.environment: dict[str, str] = {}
        """Set over this process's own when it starts."""
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the server is, without the proxy before it."""
        return f"unix://{self.path}"

    def start(self) -> None:
        """Start on the data that is there, and return when it answers."""
        self._data.mkdir(parents=True, exist_ok=True)
        with (self.directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(executable()), "--port", "0", "--unixsocket", str(self.path), "--dir", str(self._data),
                 "--save", "", "--appendonly", "yes", "--appendfsync", "always"],
                env={**os.environ, **self.environment},
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + READY_WITHIN
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start; see {self.directory / 'redis.log'}")
            time.sleep(0.005)

    def kill(self) -> None:
        """SIGKILL: no word to anybody, nothing written that was not written before."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def empty(self) -> None:
        """Lose all data of a server that is not running."""
        shutil.rmtree(self._data)

    def halt(self) -> None:
        """SIGSTOP: connections stay, answers do not come."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(self.path))
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
            except OSError:
                return False


class Proxy:
    """The way to Redis: a unix socket that passes everything on until it is cut."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self._target = target
        self._listener: socket.socket | None = None
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where workers look for Redis."""
        return f"unix://{self.path}"

    def open(self) -> None:
        """Take connections."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._lock:
            if self._listener is not None:
                _shut(self._listener)
                self.path.unlink()
                self._listener = None
            for end in self._ends:
                _shut(end)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            outer = socket.socket(socket.AF_UNIX)
            try:
                inner, _ = listener.accept()
            except OSError:  # cut
                outer.close()
                listener.close()
                return
            try:
                outer.connect(str(self._target))
            except OSError:  # Redis is down: so is the way to it
                inner.close()
                outer.close()
                continue
            with self._lock:
                if self._listener is not listener:
                    inner.close()
                    outer.close()
                    continue
                self._ends |= {inner, outer}
            for source, drain in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pass_on, args=(source, drain), daemon=True).start()

    def _pass_on(self, source: socket.socket, drain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                drain.sendall(data)
        with self._lock:
            for end in (source, drain):
                _shut(end)
            self._ends.discard(source)
        # Each thread closes the end that only it reads from: no number of a descriptor is used after its end.
        source.close()


def _shut(end: socket.socket) -> None:
    """End both directions; waiting threads wake up."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
