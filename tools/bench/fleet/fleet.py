"""The fleet under test: one Redis, real workers, and simulated ones up to the number asked for."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from rq import Queue
from rq.serializers import JSONSerializer

from tools.bench.fleet.real import QUEUE, real_workers
from tools.bench.fleet.server import Cost, Server

SETTLE_SECONDS: Final = 15.0
"""Seconds after the start of workers in which the first chores of each are done."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A running fleet."""

    server: Server
    parent: psutil.Process
    """Parent process of the real workers."""
    real: int
    simulated: int
    alone: tuple[Cost, Cost]
    """Cost of Redis at the ends of an interval in which there were real workers only."""

    @property
    def total(self) -> int:
        return self.real + self.simulated

    @property
    def queue(self) -> Queue:
        return Queue(QUEUE, connection=self.server.redis, serializer=JSONSerializer)


def observe(server: Server, seconds: float) -> tuple[Cost, Cost]:
    """Return the cost of Redis at the beginning and at the end of some seconds."""
    before = server.cost()
    time.sleep(seconds)
    return before, server.cost()


@contextmanager
def fleet(real: int, total: int, seconds: float) -> Iterator[Fleet]:
    """Run `total` workers, `real` of them real; those are observed alone for `seconds` first, 0: they are not."""
    with tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True) as scratch:
        directory = Path(scratch)
        server = Server(directory)
        server.start()
        try:
            with real_workers(server.redis, server.url, real, directory) as parent:
                time.sleep(SETTLE_SECONDS if seconds else 0)
                alone = observe(server, seconds)
                with simulated_workers(server, total - real):
                    yield Fleet(server, parent, real, total - real, alone)
        finally:
            server.stop()


@contextmanager
def simulated_workers(server: Server, count: int) -> Iterator[None]:
    """Run simulated workers in a separate process."""
    path = server.url.removeprefix("unix://")
    process = subprocess.Popen([sys.executable, "-m", "tools.bench.fleet.simulated", path, str(count)])
    try:
        expected = server.redis.scard(f"rq:workers:{QUEUE}") + count
        while server.redis.scard(f"rq:workers:{QUEUE}") < expected and process.poll() is None:
            time.sleep(0.1)
        time.sleep(SETTLE_SECONDS)
        yield
    finally:
        process.terminate()
        process.wait()
