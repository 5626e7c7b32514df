"""Latency and processor time of `preflight serve`: a real service and a real Redis.

    python -m tools.bench.web

Medians are those of one client, which keeps its connection open and asks again as soon as it has an answer. Posts come
at a fixed rate, each when its time has come, whether or not the one before was answered: a slow answer delays no later
request, and so hides none. Viewers are connections of this process that read as fast as it can.
"""

import argparse
import asyncio
import http.client
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
from io import BytesIO
from pathlib import Path
from typing import Final

import psutil
from PIL import Image
from redis import Redis
from support.web.crowd import ask

from preflight import Client
from preflight.events.state import publish
from preflight.redis.server.embedded import redis_server
from preflight.wire import STATE_TTL, JobStarted, Progress, parse_job
from tools.bench.record import Record, judged, samples, start
from worker.config.settings import Settings, load, service_environment

RATE: Final = 50
"""Posts a second."""
VIEWERS: Final = 200
EVENTS: Final = 2
"""Events a second that a running job publishes."""
QUESTIONS: Final = 500
"""Requests of one client, one after the other."""
HEALTH_BOUND: Final = 0.002
ANSWER_BOUND: Final = 0.010
P99_BOUND: Final = 0.020
CPU_BOUND: Final = 0.10
"""Share of one core, for all viewers."""
DELAY_BOUND: Final = 1.0
JOB: Final = {"type": "preflight.train.v1", "dataset": "mnist", "model": "cnn"}
MODEL: Final = {**JOB, "dataset": "digits", "job_id": "model", "calibrate": False}
"""The job whose model predicts; its data set comes with scikit-learn."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running service."""

    port: int
    process: psutil.Process
    redis_url: str
    settings: Settings


@asynccontextmanager
async def service() -> AsyncIterator[Service]:
    """Run a Redis and a service."""
    with redis_server() as url, tempfile.TemporaryDirectory() as directory:
        with closing(socket.create_server(("127.0.0.1", 0))) as listening:
            port = listening.getsockname()[1]
        folder = Path(directory)
        settings = load(
            redis_url=url, data_dir=folder / "data", artifact_dir=folder / "artifacts", cache_dir=folder / "cache",
            state_dir=folder / "state",
        )  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", "serve", "--port", str(port)],
            env=service_environment(settings), stdin=subprocess.DEVNULL,
            stdout=(folder / "log").open("wb"), stderr=subprocess.STDOUT,
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
            yield Service(port, psutil.Process(process.pid), url, settings)
        finally:
            process.terminate()
            process.wait()


async def posts(running: Service, seconds: float, record: Record) -> None:
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
    record.row(
        f"POST /v1/jobs, {len(taken)} at {RATE}/s", samples([1e3 * each for each in taken], ".1f", " ms"), "", ""
    )
    record.row("p99", f"{1e3 * p99:.1f} ms", f"{1e3 * P99_BOUND:.0f} ms", judged(p99 <= P99_BOUND))


def answers(running: Service, record: Record) -> None:
    """Ask on one kept-alive connection, and record how long the answers took."""
    questions = (
        ("GET", "/healthz", None, HEALTH_BOUND), ("GET", "/v1/jobs", None, ANSWER_BOUND),
        ("POST", f"/v1/jobs/{MODEL['job_id']}/predict", picture(), ANSWER_BOUND),
    )  # fmt: skip
    for method, path, body, bound in questions:
        with closing(http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)) as connection:
            seconds(connection, method, path, body)  # the first picture starts a process
            taken = [seconds(connection, method, path, body) for _ in range(QUESTIONS)]
        cell = samples([1e3 * each for each in taken], ".1f", " ms")
        verdict = judged(statistics.median(taken) <= bound)
        record.row(f"{method} {path}, kept alive", cell, f"{1e3 * bound:.0f} ms", verdict)


def train(running: Service) -> None:
    """Have a worker train the model that predicts."""
    Client(running.redis_url, queue=running.settings.queue).enqueue(parse_job(MODEL))
    subprocess.run(
        [sys.executable, "-P", "-m", "worker.cli", "worker", "--burst"], env=service_environment(running.settings),
        check=True, capture_output=True,
    )  # fmt: skip


def picture() -> bytes:
    """Return a picture of the size of MNIST's as PNG."""
    file = BytesIO()
    Image.radial_gradient("L").resize((28, 28)).save(file, "PNG")
    return file.getvalue()


def seconds(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None) -> float:
    """Return the seconds until the whole answer is there."""
    began = time.perf_counter()
    connection.request(method, path, body, {} if body is None else {"content-type": "image/png"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{method} {path} was answered {answer.status}: {content.decode()}")
    return time.perf_counter() - began


async def viewers(running: Service, seconds: float, record: Record) -> None:
    """Let `VIEWERS` follow one job that publishes `EVENTS` a second; record processor time and delays."""
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
    listening = [asyncio.create_task(collect_delays(reader, delays)) for reader, _ in streams]
    await asyncio.sleep(2)
    delays.clear()
    before, start = running.process.cpu_times(), time.perf_counter()
    published = int(EVENTS * seconds)
    for seq in range(2, published + 2):
        event = Progress(
            seq=seq, job_id="watched", attempt=1, ts=time.time(), epoch=1, epochs=1, step=seq, steps=1000, loss=0.5,
            accuracy=0.5, samples_per_s=10_000, eta_s=10,
        )  # fmt: skip
        publish(redis, event, ttl=STATE_TTL)
        await asyncio.sleep(1 / EVENTS)
    after, took = running.process.cpu_times(), time.perf_counter() - start
    readers = 0
    for _ in range(100):  # between two reads the one reader also asks whether the job is active
        await asyncio.sleep(0.02)
        readers = max(readers, sum("b" in one["flags"] for one in redis.client_list()))
    share = (after.user + after.system - before.user - before.system) / took
    for task in listening:
        task.cancel()
    for _, writer in streams:
        writer.close()
    received = len(delays) / (published * VIEWERS)
    record.row(
        f"{VIEWERS} viewers of one job, {EVENTS} events/s: Redis readers", str(readers), "1", judged(readers == 1)
    )
    record.row(
        "processor time of the service", f"{share:.1%} of a core", f"{CPU_BOUND:.0%}", judged(share <= CPU_BOUND)
    )
    record.row("events received by all of them", f"{received:.1%}", "100%", judged(received == 1))
    record.row("from the event to its viewers", samples(delays, ".3f", " s"), f"at most {DELAY_BOUND:g} s",
               judged(max(delays) <= DELAY_BOUND))  # fmt: skip


async def collect_delays(reader: asyncio.StreamReader, delays: list[float]) -> None:
    """Record the delay of each event."""
    while line := await reader.readline():
        if line.startswith(b"data: ") and b'"progress"' in line:
            delays.append(time.time() - json.loads(line[6:])["ts"])


async def measure(duration: float) -> None:
    """Run all parts against one service."""
    async with service() as running:
        record = start("web", "python -m tools.bench.web", "a network between clients and service")
        record.head("the web service", "figure", "bound", "")
        await asyncio.to_thread(train, running)
        await posts(running, duration, record)
        await asyncio.to_thread(answers, running, record)
        await viewers(running, duration, record)
        resident = running.process.memory_info().rss / 2**20
        record.row("resident then", f"{resident:.0f} MiB", "", "")
        record.write()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.web", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for which each part runs")
    asyncio.run(measure(parser.parse_args(arguments).seconds))


if __name__ == "__main__":
    main()
