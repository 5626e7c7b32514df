"""Predictions over HTTP beside a plain inference service, in turns: each service on one core, the clients on another.

    python -m tools.bench.predict

Both answer with the network `cnn` (random weights: the time is the same) on PNG pictures like MNIST's. Clients keep
their connections open and ask again as soon as they have an answer. Where there is one core only, all share it.
"""

import argparse
import base64
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

import psutil
from PIL import Image, ImageDraw
from redis import Redis

from preflight.redis.server.embedded import redis_server
from tools.bench.record import Record, judged, samples, start
from tools.faults.machines import free_port
from worker.config.settings import load, service_environment
from worker.models.promoting import promote_artifact
from worker.models.store import Author, ModelStore, open_store

ALIAS: Final = "bench"
PATH: Final = f"/v1/models/{ALIAS}/predict"
ME: Final = Author(by="bench")
ROUNDS: Final = 5
CLIENTS: Final = (1, 32)
LEAST: Final = {1: 0.7, 32: 1.0}
"""Share of the plain service's requests a second."""
BATCH, BATCH_RATE = 256, 5_000
"""Pictures of one request, and the least a second."""
SWAPS, SWAPPED = 20, 10_000
"""Promotions while so many requests are answered."""
MEMORY_BOUND: Final = 250
"""MiB that predicting adds."""
WARM, LONG = 1_000, 100_000
"""Requests before the memory is compared."""


@dataclass(frozen=True, slots=True)
class Target:
    """A service and what it is asked."""

    name: str
    port: int
    path: str


def picture(width: int) -> bytes:
    """Return a zero like MNIST's, `width` pixels wide, as PNG."""
    image = Image.new("L", (28, 28))
    left = 14 - width // 2
    ImageDraw.Draw(image).ellipse((left, 4, left + width - 1, 23), outline=255, width=3)
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def train(directory: Path, seed: int) -> Path:
    """Write an artifact of `cnn` with random weights; return its directory."""
    program = (
        "import sys, torch; from pathlib import Path; from safetensors.torch import save as encode\n"
        "from training.artifacts.model_dir import save; from training.models.factory import build\n"
        "torch.manual_seed(int(sys.argv[2])); weights = encode(build('cnn', (1, 28, 28), 10).state_dict())\n"
        "reads = {'shape': [1, 28, 28], 'classes': 10, 'mean': 33.3, 'std': 78.6, 'filled': 20 / 28}\n"
        "save(Path(sys.argv[1]), [weights], {'spec': {'model': 'cnn', 'dataset': 'mnist'}, 'input': reads})"
    )
    subprocess.run([sys.executable, "-P", "-c", program, str(directory), str(seed)], check=True)
    return directory


@contextmanager
def process(command: Sequence[str], environment: dict[str, str], cores: set[int]) -> Iterator[psutil.Process]:
    """Run a service on these cores."""
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, cores)
    )  # fmt: skip
    try:
        yield psutil.Process(started.pid)
    finally:
        started.terminate()
        started.wait()


class Connection:
    """A connection that is kept open; it reads no more of an answer than it needs, to leave the core to others."""

    def __init__(self, target: Target) -> None:
        self._head = f"POST {target.path} HTTP/1.1\r\nhost: localhost\r\n".encode()
        deadline = time.monotonic() + 60
        while True:
            try:
                self._socket = socket.create_connection(("127.0.0.1", target.port), timeout=60)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, body: bytes, kind: bytes = b"image/png") -> bytes:
        """Return the body of the answer; raises `SystemExit` for another status than 200."""
        length = str(len(body)).encode()
        self._socket.sendall(
            self._head + b"content-type: " + kind + b"\r\ncontent-length: " + length + b"\r\n\r\n" + body
        )  # fmt: skip
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, content = received.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        parts, missing = [content], size - len(content)
        while missing > 0:
            parts.append(self._receive())
            missing -= len(parts[-1])
        if b" 200 " not in head[:16]:
            raise SystemExit(f"the service answered {head.splitlines()[0].decode()}: {content.decode()[:200]}")
        return b"".join(parts)

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 18)
        if not data:
            raise SystemExit("the service closed the connection")
        return data


def load_with(target: Target, clients: int, seconds: float) -> tuple[float, list[float]]:
    """Return requests a second, and the sorted seconds of the answers."""
    bodies = [picture(width) for width in range(9, 19)]
    taken: list[float] = []
    ready, end = threading.Barrier(clients + 1), [0.0]

    def run() -> None:
        connection = Connection(target)
        connection.ask(bodies[0])
        ready.wait()
        own, number = [], 0
        while (began := time.perf_counter()) < end[0]:
            connection.ask(bodies[number % len(bodies)])
            own.append(time.perf_counter() - began)
            number += 1
        taken.extend(own)

    threads = [threading.Thread(target=run) for _ in range(clients)]
    for thread in threads:
        thread.start()
    end[0] = time.perf_counter() + 3600
    ready.wait()
    end[0] = time.perf_counter() + seconds
    for thread in threads:
        thread.join()
    return len(taken) / seconds, sorted(taken)


def compare(targets: Sequence[Target], seconds: float, record: Record) -> None:
    """Record requests a second and percentiles of both services, in turns."""
    for clients in CLIENTS:
        rates: dict[str, list[float]] = {target.name: [] for target in targets}
        middles, lates = {target.name: [0.0] * 0 for target in targets}, {target.name: [0.0] * 0 for target in targets}
        for turn in range(ROUNDS):
            for target in targets if turn % 2 else reversed(targets):
                rate, taken = load_with(target, clients, seconds)
                rates[target.name].append(rate)
                middles[target.name].append(1e3 * taken[len(taken) // 2])
                lates[target.name].append(1e3 * taken[int(0.99 * len(taken))])
        for target in targets:
            record.row(
                f"{target.name}, {clients} client{'s' if clients > 1 else ''}",
                samples(rates[target.name], ",.0f", " requests/s"), samples(middles[target.name], ".1f", " ms"),
                samples(lates[target.name], ".1f", " ms"), "",
            )  # fmt: skip
        ours, plain = (target.name for target in targets)
        ratios = [one / other for one, other in zip(rates[ours], rates[plain], strict=True)]
        later = statistics.median(lates[ours]) <= statistics.median(lates[plain])
        record.row(
            f"ours / plain, {clients} client{'s' if clients > 1 else ''}", samples(ratios, ".2f"), "",
            judged(later) + ": p99 at most the plain one's",
            judged(statistics.median(ratios) >= LEAST[clients]) + f": at least {LEAST[clients]}",
        )  # fmt: skip


def many(target: Target, record: Record) -> None:
    """Record pictures a second of requests with `BATCH` pictures."""
    images = [base64.b64encode(picture(9 + number % 10)).decode() for number in range(BATCH)]
    body, connection, rates = json.dumps({"images": images}).encode(), Connection(target), []
    for _ in range(20):
        began = time.perf_counter()
        answer = connection.ask(body, b"application/json")
        rates.append(BATCH / (time.perf_counter() - began))
    if len(json.loads(answer)["predictions"]) != BATCH:
        raise SystemExit("an answer lacks pictures")
    verdict = judged(statistics.median(rates) >= BATCH_RATE)
    record.row(
        f"{BATCH} pictures in one request", samples(rates, ",.0f", " pictures/s"), "", "", f"{verdict}: {BATCH_RATE:,}"
    )


def swap(target: Target, store: ModelStore, artifacts: Sequence[Path], record: Record) -> None:
    """Record the requests that failed while models were promoted; an answer of a third model ends the benchmark."""
    left, lock, found = [SWAPPED], threading.Lock(), set[str]()

    def run() -> None:
        connection = Connection(target)
        while True:
            with lock:
                if left[0] <= 0:
                    return
                left[0] -= 1
            found.add(json.loads(connection.ask(picture(10)))["model_sha256"])

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for number in range(SWAPS):
        while left[0] > SWAPPED * (1 - (number + 1) / (SWAPS + 1)):
            time.sleep(0.01)
        promote_artifact(store, ALIAS, artifacts[number % 2], ME)
    for thread in threads:
        thread.join()
    known = {each.model_sha256 for each in store.alias(ALIAS).history}
    record.row(
        f"{SWAPPED:,} requests, {SWAPS} promotions", "0 failed", f"{len(found)} models", "", judged(found == known)
    )  # fmt: skip


def memory(target: Target, service: psutil.Process, before: int, requests: int, record: Record) -> None:
    """Record what predicting adds, and that it stays."""
    connection = Connection(target)
    for _ in range(WARM):
        connection.ask(picture(10))
    first = resident(service)
    bodies = [picture(width) for width in range(9, 19)]
    for number in range(requests - WARM):
        connection.ask(bodies[number % len(bodies)])
    last = resident(service)
    added = (last - before) / 2**20
    record.row(
        f"resident after {requests:,} requests", f"{last / 2**20:.0f} MiB", f"{first / 2**20:.0f} MiB after {WARM:,}",
        f"{added:.0f} MiB added", judged(added <= MEMORY_BOUND) + f": at most {MEMORY_BOUND} MiB",
    )  # fmt: skip


def resident(service: psutil.Process) -> int:
    """Return the bytes of a process and its children in memory."""
    return sum(each.memory_info().rss for each in (service, *service.children(recursive=True)))


def measure(seconds: float, requests: int) -> None:
    """Run all parts."""
    cores = sorted(os.sched_getaffinity(0))
    record = start("predict", "python -m tools.bench.predict", "a network between clients and service")
    record.head("predictions", "rate", "median", "99th percentile", "")
    with redis_server() as url, tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        settings = load(
            redis_url=url, data_dir=folder / "data", artifact_dir=folder / "artifacts", cache_dir=folder / "cache",
            state_dir=folder / "state",
        )  # fmt: skip
        store = open_store(settings)
        artifacts = [train(settings.artifact_dir / f"job{seed}", seed) for seed in range(2)]
        for artifact in artifacts:
            promote_artifact(store, ALIAS, artifact, ME)
        Redis.from_url(url).ping()
        model = store.resolve(ALIAS).directory / "model.onnx"
        os.sched_setaffinity(0, {cores[-1]})
        ours, plain = Target("ours", free_port(), PATH), Target("plain", free_port(), "/predict")
        serve = [sys.executable, "-P", "-m", "worker.cli", "serve", "--port", str(ours.port)]
        other = [sys.executable, "-P", "-m", "tools.bench.plain_predict", str(model), str(plain.port)]
        tools = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (
            process(serve, dict(service_environment(settings)), {cores[0]}) as service,
            process(other, tools, {cores[0]}),
        ):
            Connection(plain).ask(picture(10))
            idle = Connection(ours)
            before = resident(service)
            idle.ask(picture(10))
            compare((ours, plain), seconds, record)
            many(ours, record)
            swap(ours, store, artifacts, record)
            memory(ours, service, before, requests, record)
    record.write()


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.predict", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn of each service")
    parser.add_argument("--requests", type=int, default=LONG, help="after which the memory is compared")
    parsed = parser.parse_args(arguments)
    measure(parsed.seconds, parsed.requests)


if __name__ == "__main__":
    main()
