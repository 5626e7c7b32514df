"""Events on their way to Redis, while Redis comes and goes."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from worker import keys
from worker.embedded_redis import executable
from worker.sinks import RedisSink
from worker.wire import JobStarted, Progress


class Server:
    """A redis-server that can be taken away and brought back with its data."""

    def __init__(self, directory: Path) -> None:
        self.connection = Redis(unix_socket_path=str(directory / "redis.sock"), decode_responses=True)
        self._command = [
            str(executable()), "--port", "0", "--unixsocket", str(directory / "redis.sock"),
            "--dir", str(directory), "--save", "", "--appendonly", "yes", "--appendfsync", "always",
        ]  # fmt: skip
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        while True:
            try:
                self.connection.ping()
            except RedisConnectionError:
                time.sleep(0.01)
            else:
                return process

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self._process = self._start()

    def sequence(self) -> list[int]:
        """Return the seq of every published event, in the order of the stream."""
        records = self.connection.xrange(keys.events("j")) or []
        return [int(fields["seq"]) for _, fields in records if fields]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path)
    yield running
    running.kill()


def progress(seq: int) -> Progress:
    return Progress(
        seq=seq, job_id="j", attempt=1, ts=time.time(), epoch=1, epochs=1, step=seq, steps=100, loss=0.5,
        accuracy=0.5,
        samples_per_s=1, eta_s=1,
    )  # fmt: skip


def test_events_wait_for_redis_in_order(server: Server) -> None:
    """Killed in the middle and brought back: every event arrives once, in order, and none blocks the training."""
    sink = RedisSink(server.connection, "j", ttl=100, kept=1000)
    for seq in range(1, 4):
        sink.emit(progress(seq))
    server.kill()
    for seq in range(4, 9):
        sink.emit(progress(seq))
    assert not sink.drain(0.3)
    server.restart()
    assert sink.drain(30)
    sink.emit(progress(9))
    assert server.sequence() == list(range(1, 10))
    assert server.connection.hget(keys.state("j"), "step") == "9"


def test_a_full_redis_stops_no_training(server: Server) -> None:
    """`OOM command not allowed`: events wait as they do while it is away, and arrive when there is room."""
    sink = RedisSink(server.connection, "j", ttl=100, kept=1000)
    server.connection.config_set("maxmemory", 1)
    for seq in range(1, 4):
        sink.emit(progress(seq))
    assert server.sequence() == []
    server.connection.config_set("maxmemory", 0)
    assert sink.drain(30)
    assert server.sequence() == [1, 2, 3]


def test_a_new_attempt_wipes_the_state_of_the_old(server: Server) -> None:
    """Figures of a failed attempt are not shown as the next one's."""
    sink = RedisSink(server.connection, "j", ttl=100, kept=1000)
    sink.emit(progress(1))
    sink.emit(
        JobStarted(seq=2, job_id="j", attempt=2, ts=1, worker="w", dataset="mnist", model="cnn", epochs=1, batch_size=8)
    )
    state = server.connection.hgetall(keys.state("j"))
    assert state["status"] == "running"
    assert state["attempt"] == "2"
    assert "loss" not in state


def test_the_event_stream_is_capped(server: Server) -> None:
    """Roughly: Redis trims whole nodes."""
    sink = RedisSink(server.connection, "j", ttl=100, kept=100)
    for seq in range(1, 601):
        sink.emit(progress(seq))
    assert 100 <= len(server.sequence()) < 300
