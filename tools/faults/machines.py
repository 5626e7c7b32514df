"""Surroundings of a worker that can fail by themselves: a redis-server with an append-only file, and the way to it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from redis import Redis

from preflight.redis.server.embedded import executable

READY_WITHIN: Final = 20.0
"""Seconds for a server to load its append-only file and answer."""
CHUNK: Final = 1 << 16


class RedisServer:
    """A redis-server on a unix socket that syncs every write: it can be killed, restarted, emptied and halted."""

    def __init__(self, directory: Path, *, port: int = 0, options: Sequence[str] = ()) -> None:
        """Keep everything in `directory`; replicas need a `port`, `options` are further ones of redis-server."""
        self.directory = directory
        self.port = port
        self.options = options
        self.path = directory / "redis.sock"
        self.environment: dict[str, str] = {}
        """Variables set over this process's own when the server starts."""
        self._data = directory / "data"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Address of the server itself, without the proxy before it."""
        return f"unix://{self.path}"

    def start(self, *, ready: bool = True) -> None:
        """Start on the data that is there, and return when it answers; without `ready`, at once."""
        self._data.mkdir(parents=True, exist_ok=True)
        with (self.directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(executable()), "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.path),
                 "--dir", str(self._data), "--save", "", "--appendonly", "yes", "--appendfsync", "always",
                 *self.options],
                env={**os.environ, **self.environment},
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + READY_WITHIN
        while ready and not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"redis-server did not start; see {self.directory / 'redis.log'}")
            time.sleep(0.005)

    def kill(self) -> None:
        """Send SIGKILL: clients get no notice, and nothing more is written."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def empty(self) -> None:
        """Lose all data of a server that is not running."""
        shutil.rmtree(self._data)

    def halt(self) -> None:
        """Send SIGSTOP: connections stay, answers do not come."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Send SIGCONT."""
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
    """The way to Redis: a unix socket or a port of this machine that passes everything on until it is cut."""

    def __init__(self, path: Path | int, target: Path | int) -> None:
        self.path = path
        self.target = target
        """Address to which new connections lead; existing ones stay as they are."""
        self._passes = threading.Event()
        self._passes.set()
        self._listener: socket.socket | None = None
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Address at which workers look for Redis."""
        return f"redis://127.0.0.1:{self.path}" if isinstance(self.path, int) else f"unix://{self.path}"

    def open(self) -> None:
        """Take connections."""
        listener, address = _socket(self.path)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(64)
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._lock:
            if self._listener is not None:
                _shut(self._listener)
                if isinstance(self.path, Path):
                    self.path.unlink()
                self._listener = None
            for end in self._ends:
                _shut(end)
            self._passes.set()

    def hold(self) -> None:
        """Pass nothing on any more; connections stay."""
        self._passes.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:  # cut
                listener.close()
                return
            outer, address = _socket(self.target)
            try:
                outer.connect(address)
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
                self._passes.wait()
                drain.sendall(data)
        with self._lock:
            for end in (source, drain):
                _shut(end)
            self._ends.discard(source)
        # Each thread closes the end that only it reads from: no number of a descriptor is used after its end.
        source.close()


class Pair:
    """Two servers with ports, of which one is the primary and the other its replica, and the way to the primary."""

    def __init__(self, primary: RedisServer, replica: RedisServer, proxy: Proxy) -> None:
        self._servers = [primary, replica]
        self.proxy = proxy
        self._link: Proxy | None = None
        """Proxy through which a replica that lags gets its data."""

    @property
    def primary(self) -> RedisServer:
        """The server that takes writes."""
        return self._servers[0]

    @property
    def replica(self) -> RedisServer:
        """The server that follows the primary."""
        return self._servers[1]

    def replicate(self, port: int | None = None) -> None:
        """Make the one server the replica of the other, or of `port`; returns once it has everything."""
        command(self.primary, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
        command(self.replica, "REPLICAOF", "127.0.0.1", str(port or self.primary.port))
        deadline = time.monotonic() + READY_WITHIN
        while b"master_link_status:up" not in command(self.replica, "INFO", "replication"):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.replica.directory} does not replicate; see its redis.log")
            time.sleep(0.005)

    def fail_over(self) -> None:
        """Let them change places as planned: nothing is lost, and every connection to the old primary stays open."""
        command(self.primary, "FAILOVER", "TIMEOUT", "10000")
        deadline = time.monotonic() + READY_WITHIN
        roles = (b"role:slave", b"role:master")
        while any(
            role not in command(each, "INFO", "replication") for role, each in zip(roles, self._servers, strict=True)
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.primary.directory} did not hand over; see its redis.log")
            time.sleep(0.005)
        self._change_places()

    def lag(self) -> None:
        """Let the replica, which stays connected, get none of the writes from now on."""
        self._link = Proxy(free_port(), self.primary.port)
        self._link.open()
        assert isinstance(self._link.path, int)
        self.replicate(self._link.path)
        self._link.hold()

    def fail_over_behind(self) -> None:
        """Let them change places after `lag`: what was written meanwhile is lost."""
        self.promote()
        self.replicate()

    def promote(self) -> None:
        """Let them change places, and the old primary take itself for one; it keeps its connections."""
        command(self.replica, "REPLICAOF", "NO", "ONE")
        if self._link is not None:
            self._link.cut()
        self._change_places()

    def _change_places(self) -> None:
        self._servers.reverse()
        self.proxy.target = self.primary.path


@contextlib.contextmanager
def new_pair(directory: Path, port: int | None = None) -> Iterator[Pair]:
    """Start two servers and open the way to the first, by TCP with a `port`; yields them once they are in step."""
    first, second = (RedisServer(directory / name, port=free_port()) for name in ("first", "second"))
    pair = Pair(first, second, Proxy(port or directory / "proxy.sock", first.path))
    try:
        for server in (first, second):
            server.directory.mkdir(parents=True)
            server.start()
        pair.replicate()
        pair.proxy.open()
        yield pair
    finally:
        pair.proxy.cut()
        for server in (first, second):
            server.kill()


def command(server: RedisServer, *words: str) -> bytes:
    """Return the raw answer to a command."""
    with Redis(unix_socket_path=str(server.path), protocol=2) as client:
        client.response_callbacks.clear()
        answer = client.execute_command(*words)
    return answer if isinstance(answer, bytes) else str(answer).encode()


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _socket(address: Path | int) -> tuple[socket.socket, str | tuple[str, int]]:
    """Return a socket for an address, and the address as the socket takes it."""
    if isinstance(address, int):
        return socket.socket(), ("127.0.0.1", address)
    return socket.socket(socket.AF_UNIX), str(address)


def _shut(end: socket.socket) -> None:
    """End both directions; waiting threads wake up."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
