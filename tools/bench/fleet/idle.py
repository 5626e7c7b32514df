"""Cost of an idle fleet for Redis, difference of simulated and real workers, and seconds of the page's answers."""

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from tools.bench.fleet.fleet import Fleet, observe
from tools.bench.fleet.real import held_bytes
from tools.bench.record import judged, samples, start
from worker.config.settings import load, service_environment

COMMANDS_BOUND: Final = 2.0
CONNECTIONS_BOUND: Final = 2
CPU_BOUND: Final = 0.30
LIKENESS: Final = 0.10
"""Share by which the commands a second of a simulated worker may differ from those of a real one."""
PATHS: Final = ("/v1/jobs", "/v1/overview", "/metrics")
ASKED: Final = 10
CACHE_SECONDS: Final = 0.6
"""Seconds between two requests; for less, the service keeps an answer."""


def measure(fleet: Fleet, seconds: float, command: str) -> None:
    """Print and write the tables."""
    before, after = observe(fleet.server, seconds)
    alone, together = fleet.alone[1].rates(fleet.alone[0]), after.rates(before)
    real = {name: rate / fleet.real for name, rate in alone.items()}
    simulated = {name: (together.get(name, 0) - alone.get(name, 0)) / max(1, fleet.simulated) for name in together}
    record = start("fleet-idle", command, "a network between workers and Redis")
    record.head("Redis", f"{fleet.real} real", f"{fleet.total:,} workers", "bound", "")
    total, cores = sum(together.values()), after.cores(before)
    record.row("commands a second, those in scripts too", f"{sum(alone.values()):,.0f}", f"{total:,.0f}", "", "")
    each, bound = sum(alone.values()) / fleet.real, COMMANDS_BOUND
    record.row("of a worker", f"{each:.2f}", f"{total / fleet.total:.2f}", f"{bound:g}", judged(each <= bound))
    linked = [(cost.connections - 1) / count for cost, count in ((fleet.alone[1], fleet.real), (after, fleet.total))]
    record.row("connections of a worker", *(f"{each:.2f}" for each in linked), f"{CONNECTIONS_BOUND}",
               judged(linked[0] <= CONNECTIONS_BOUND))  # fmt: skip
    record.row("processor time, share of a core", f"{fleet.alone[1].cores(fleet.alone[0]):.1%}", f"{cores:.1%}",
               f"{CPU_BOUND:.0%}", judged(cores <= CPU_BOUND))  # fmt: skip
    record.row("memory", *(f"{cost.memory / 2**20:.1f} MiB" for cost in (fleet.alone[1], after)), "", "")
    record.row("memory of a worker (PSS)", f"{held_bytes(fleet.parent) / 2**20:.1f} MiB", "", "", "")
    record.head("commands a second of one worker", "real", "simulated")
    for name in sorted(real | simulated, key=lambda name: -real.get(name, 0)):
        record.row(name, f"{real.get(name, 0):.3f}", f"{simulated.get(name, 0):.3f}")
    apart = abs(sum(simulated.values()) / sum(real.values()) - 1)
    record.note(f"Sums differ by {apart:.1%} (bound {LIKENESS:.0%}): {judged(apart <= LIKENESS)}.")
    record.head(f"with {fleet.total:,} workers, median (range) of {ASKED}", "milliseconds")
    for path, taken in ask_page(fleet).items():
        record.row(f"GET {path}", samples([1e3 * each for each in taken], ".1f"))
    record.write()


def ask_page(fleet: Fleet) -> dict[str, Sequence[float]]:
    """Return the seconds of answers of a service next to the fleet."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = listening.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "worker.cli", "serve", "--port", str(port)], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, env=service_environment(load(redis_url=fleet.server.url)),
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while _get(port, "/readyz")[0] != 200:
            if time.monotonic() > deadline:
                raise SystemExit("the service did not get ready within 30 s")
            time.sleep(0.1)
        return {path: [_timed(port, path) for _ in range(ASKED)] for path in PATHS}
    finally:
        process.terminate()
        process.wait()


def _timed(port: int, path: str) -> float:
    time.sleep(CACHE_SECONDS)
    began = time.perf_counter()
    status, _ = _get(port, path)
    if status != 200:
        raise SystemExit(f"GET {path} was answered {status}")
    return time.perf_counter() - began


def _get(port: int, path: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 0, b""
