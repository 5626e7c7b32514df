"""A Redis with an append-only file that can be restarted, and its cost."""

import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from preflight.redis.server.embedded import executable


@dataclass(frozen=True, slots=True)
class Cost:
    """Counters of a Redis at one moment."""

    at: float
    """Monotonic time."""
    calls: dict[str, int]
    """Command -> calls so far, those of scripts too."""
    cpu: float
    """Seconds of processor time so far."""
    connections: int
    received: int
    """Connections so far."""
    memory: int
    """Bytes of data and buffers."""

    def rates(self, before: "Cost") -> dict[str, float]:
        """Return calls a second of each command since an earlier moment."""
        seconds = self.at - before.at
        rates = {name: (count - before.calls.get(name, 0)) / seconds for name, count in self.calls.items()}
        return {name: rate for name, rate in rates.items() if rate > 0 and name not in ("info", "config|resetstat")}

    def cores(self, before: "Cost") -> float:
        """Return the share of a core since an earlier moment."""
        return (self.cpu - before.cpu) / (self.at - before.at)


class Server:
    """One server on a private socket."""

    def __init__(self, directory: Path) -> None:
        """Keep its data in `directory`."""
        self._directory = directory
        self._socket = directory / "redis.sock"
        self.url = f"unix://{self._socket}"
        self.redis = Redis.from_url(self.url)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = (self._directory / "redis.log").open("ab")
        self._process = subprocess.Popen(
            [str(executable()), "--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._directory),
             "--appendonly", "yes", "--save", "", "--maxclients", "10000"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        while not self._answers():
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop it; acknowledged writes are on disk."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def cost(self) -> Cost:
        """Return the counters so far."""
        found = self.redis.info("all")
        calls = {
            name.removeprefix("cmdstat_"): int(value["calls"])
            for name, value in found.items()
            if name.startswith("cmdstat_") and isinstance(value, dict)
        }
        return Cost(
            at=time.monotonic(), calls=calls, cpu=float(found["used_cpu_user"]) + float(found["used_cpu_sys"]),
            connections=int(found["connected_clients"]), received=int(found["total_connections_received"]),
            memory=int(found["used_memory"]),
        )  # fmt: skip

    def _answers(self) -> bool:
        try:
            return bool(self.redis.ping())
        except RedisError:
            return False
