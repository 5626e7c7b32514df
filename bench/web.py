"""What `preflight serve` costs and how soon it answers: a real service and a real Redis of its own.

    python -m bench.web

Posts come at a fixed rate, each when its time has come, whether or not the one before was answered: a slow answer
delays no later request, and so hides none. Viewers are connections of this process that read as fast as it can.
"""

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from redis import Redis

from bench.tables import head, judged, row
from worker.broker import keys
from worker.broker.embedded_redis import redis_server
from worker.config.settings import Settings, service_environment
from worker.events.state import publish
from worker.wire import EVENTS_KEPT, STATE_TTL, JobStarted, Progress, flatten

RATE: Final = 50
"""Posts a second."""
VIEWERS: Final = 200
EVENTS: Final = 2
"""Events a second that a running job says."""
P99_BOUND: Final = 0.020
CPU_BOUND: Final = 0.10
"""Of one core, for all viewers."""
DELAY_BOUND: Final = 1.0
IDLE: Final = 1000
"""Connections without a request."""
JOBS: Final = 200
"""Jobs watched at once, each with as many events as are kept."""
LISTED: Final = 100_000
"""Jobs that have ended and are still listed."""
MEMORY_BOUND: Final = 256 << 20
SAID: Final = "for n = 1, tonumber(ARGV[1]) do redis.call('XADD', KEYS[1], n .. '-0', unpack(ARGV, 2)) end"
"""Script that says one event that many times."""
JOB: Final = {"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn"}


@dataclass(frozen=True, slots=True)
class Service:
    """A running service."""

    port: int
    process: psutil.Process
    redis_url: str


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    """Run a Redis and a service."""
    with redis_server() as url, tempfile.TemporaryDirectory() as directory:
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            port = listening.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", "serve", "--port", str(port)],
            env=service_environment(Settings(redis_url=url)), stdin=subprocess.DEVNULL,
            stdout=(Path(directory) / "log").open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            while True:
                try:
                    status, _ = await ask(port, "GET", "/readyz")
                    break
                except OSError:
                    await asyncio.sleep(0.05)
            if status != 200:
                raise SystemExit(f"the service is not ready: {status}")
            yield Service(port, psutil.Process(process.pid), url)
        finally:
            process.terminate()
            process.wait()


async def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, float]:
    """Return status and seconds of one request over a connection of its own."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    kind = "content-type: application/json\r\n" if body else ""
    writer.write(
        f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}content-length: {len(body)}\r\n"
        "connection: close\r\n\r\n".encode() + body
    )  # fmt: skip
    status = int((await reader.readline()).split()[1])
    await reader.read()
    writer.close()
    return status, time.perf_counter() - began


async def posts(running: Service, seconds: float) -> None:
    """Post jobs at `RATE`, and print how long the answers took."""

    async def one(number: int) -> float:
        await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        status, took = await ask(running.port, "POST", "/v1/jobs", json.dumps(JOB).encode())
        if status != 201:
            raise SystemExit(f"a job was refused: {status}")
        return took

    await asyncio.gather(*(ask(running.port, "GET", "/v1/overview") for _ in range(5)))  # its threads are started
    began = time.perf_counter()
    taken = sorted(await asyncio.gather(*(one(number) for number in range(int(RATE * seconds)))))
    p99 = taken[int(0.99 * len(taken))]
    row(f"POST /v1/jobs, {len(taken)} at {RATE}/s: median", f"{1e3 * statistics.median(taken):.1f} ms", "", "")
    row("p99", f"{1e3 * p99:.1f} ms", f"{1e3 * P99_BOUND:.0f} ms", judged(p99 <= P99_BOUND))
    row("slowest", f"{1e3 * taken[-1]:.1f} ms", "", "")


async def viewers(running: Service, seconds: float) -> None:
    """Let `VIEWERS` follow one job that says `EVENTS` a second; print what that costs, and how late they hear."""
    redis = Redis.from_url(running.redis_url)
    began = JobStarted(
        seq=1, job_id="watched", attempt=1, ts=time.time(), worker="w", dataset="mnist", model="cnn", epochs=1,
        batch_size=128,
    )  # fmt: skip
    publish(redis, began, ttl=STATE_TTL)
    streams = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(VIEWERS)]
    for _, writer in streams:
        writer.write(b"GET /v1/jobs/watched/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
    delays: list[float] = []
    listening = [asyncio.create_task(hear(reader, delays)) for reader, _ in streams]
    await asyncio.sleep(2)
    delays.clear()
    before, start = running.process.cpu_times(), time.perf_counter()
    said = int(EVENTS * seconds)
    for seq in range(2, said + 2):
        event = Progress(
            seq=seq, job_id="watched", attempt=1, ts=time.time(), epoch=1, epochs=1, step=seq, steps=1000, loss=0.5,
            accuracy=0.5, samples_per_s=10_000, eta_s=10,
        )  # fmt: skip
        publish(redis, event, ttl=STATE_TTL)
        await asyncio.sleep(1 / EVENTS)
    after, took = running.process.cpu_times(), time.perf_counter() - start
    readers = 0
    for _ in range(100):  # between two reads the one reader also asks whether the job goes on
        await asyncio.sleep(0.02)
        readers = max(readers, sum(one["cmd"] == "xread" for one in redis.client_list()))
    share = (after.user + after.system - before.user - before.system) / took
    for task in listening:
        task.cancel()
    for _, writer in streams:
        writer.close()
    heard = len(delays) / (said * VIEWERS)
    row(f"{VIEWERS} viewers of one job, {EVENTS} events/s: Redis readers", str(readers), "1", judged(readers == 1))
    row("processor time of the service", f"{share:.1%} of a core", f"{CPU_BOUND:.0%}", judged(share <= CPU_BOUND))
    row("events heard by all of them", f"{heard:.1%}", "100%", judged(heard == 1))
    row("from the event to its viewers: median", f"{statistics.median(delays):.3f} s", "", "")
    row("slowest", f"{max(delays):.3f} s", f"{DELAY_BOUND:g} s", judged(max(delays) <= DELAY_BOUND))


async def hear(reader: asyncio.StreamReader, delays: list[float]) -> None:
    """Take down how late each event comes."""
    while line := await reader.readline():
        if line.startswith(b"data: ") and b'"progress"' in line:
            delays.append(time.time() - json.loads(line[6:])["ts"])


def fill(redis: Redis) -> None:
    """Write `LISTED` jobs that have ended, of which `JOBS` have said a lot."""
    now = time.time()
    for first in range(0, LISTED, 5000):
        pipe = redis.pipeline(transaction=False)
        for number in range(first, first + 5000):
            job_id = f"job-{number}"
            pipe.zadd("rq:finished:preflight", {job_id: now + STATE_TTL + number})
            pipe.hset(f"rq:job:{job_id}", mapping={"status": "finished", "enqueued_at": "2026-01-01T00:00:00Z"})
            state: dict[str, str | float] = {
                "status": "finished", "updated_at": now + number, "dataset": "mnist", "model": "cnn"
            }  # fmt: skip
            pipe.hset(keys.state(job_id), mapping=dict(state.items()))
        pipe.execute()
    for number in range(JOBS):
        event = Progress(
            seq=1, job_id=f"job-{number}", attempt=1, ts=now, epoch=1, epochs=1, step=1, steps=EVENTS_KEPT, loss=0.5,
            accuracy=0.5, samples_per_s=10_000, eta_s=10, used_memory_mb=512,
        )  # fmt: skip
        fields = [part for pair in flatten(event).items() for part in pair]
        redis.eval(SAID, 1, keys.events(event.job_id), EVENTS_KEPT, *fields)


async def crowd(port: int) -> list[int]:
    """Hold `IDLE` connections, list jobs, and follow each of `JOBS`; return how many events each viewer was sent."""
    idle = [asyncio.create_task(stay(port)) for _ in range(IDLE)]
    following = [asyncio.create_task(follow(port, f"job-{number}")) for number in range(JOBS)]
    while not all(task.done() for task in following):
        status, _ = await ask(port, "GET", "/v1/jobs?limit=1000")
        if status != 200:
            raise SystemExit(f"the list was refused: {status}")
        await asyncio.sleep(2)
    for task in idle:
        task.cancel()
    return [task.result() for task in following]


async def stay(port: int) -> None:
    """Hold a connection without a request; open another one when the service closes it."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.read()
        writer.close()


async def follow(port: int, job_id: str) -> int:
    """Follow a job from its first event to its end; return how many there were."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    heard = 0
    while (line := await reader.readline()) not in (b"", b"event: end\n"):
        heard += line == b"event: progress\n"
    writer.close()
    return heard


def most_resident(pid: int) -> int:
    """Return the most bytes that a process has had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise SystemExit(f"/proc/{pid}/status has no VmHWM")


async def memory(running: Service) -> None:
    """Print what the service takes with many connections, long jobs and a long list."""
    fill(Redis.from_url(running.redis_url))
    heard = await crowd(running.port)
    most = most_resident(running.process.pid)
    row(f"{IDLE} idle sockets, {JOBS} jobs of {EVENTS_KEPT} events, {LISTED} listed: events sent",
        f"{sum(heard) / (JOBS * EVENTS_KEPT):.1%}", "100%", judged(heard == [EVENTS_KEPT] * JOBS))  # fmt: skip
    row("most memory resident", f"{most / 2**20:.0f} MiB", f"{MEMORY_BOUND >> 20} MiB", judged(most < MEMORY_BOUND))


async def measure(seconds: float) -> None:
    """Run all parts against one service."""
    async with service() as running:
        head("the web service", "figure", "bound", "")
        await posts(running, seconds)
        await viewers(running, seconds)
        resident = running.process.memory_info().rss / 2**20
        row("resident then", f"{resident:.0f} MiB", "", "")
        await memory(running)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.web", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for which each part runs")
    asyncio.run(measure(parser.parse_args(arguments).seconds))


if __name__ == "__main__":
    main()
