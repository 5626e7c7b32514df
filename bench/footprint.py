"""Memory and start of an idle worker, and start-up of the light commands.

Prints a Markdown table: median and range over the repetitions. Each figure is of a whole real process.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
from redis import Redis

from bench.record import judged, samples, start
from worker.broker.embedded_redis import redis_server
from worker.config.settings import load, service_environment

REPETITIONS: Final = 7


def idle_worker() -> tuple[float, int, bool]:
    """Return seconds until a worker listens, its resident bytes two seconds later, and whether torch is loaded."""
    with redis_server() as url, tempfile.TemporaryFile() as log:
        registered, began = Redis.from_url(url), time.perf_counter()
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker.cli", "worker"],
            env=service_environment(load(redis_url=url)), stdout=log, stderr=log,
        )  # fmt: skip
        try:
            while not registered.smembers("rq:workers"):
                time.sleep(0.005)
            seconds = time.perf_counter() - began
            time.sleep(2)
            resident = psutil.Process(worker.pid).memory_info().rss
            torch = "libtorch" in Path(f"/proc/{worker.pid}/maps").read_text()
        finally:
            worker.terminate()
            worker.wait()
    return seconds, resident, torch


def seconds_of(*command: str, code: int = 0) -> Callable[[], float]:
    """Return a function that runs `command`, which has to end with exit code `code`, and returns its wall seconds."""

    def run() -> float:
        began = time.perf_counter()
        ended = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        seconds = time.perf_counter() - began
        if ended != code:
            raise SystemExit(
                f"{' '.join(command)} ended with exit code {ended}, but {code} was expected; try it by hand"
            )
        return seconds

    return run


def main() -> None:
    """Measure and print."""
    workers = [idle_worker() for _ in range(REPETITIONS)]
    importing = "import time; t = time.perf_counter(); import worker.client; print(time.perf_counter() - t)"
    imports = [float(subprocess.check_output([sys.executable, "-P", "-c", importing])) for _ in range(REPETITIONS)]
    preflight = str(Path(sys.executable).parent / "preflight")
    preflight_help, refused = seconds_of(preflight, "--help"), seconds_of(preflight, "train", "--epochs", "0", code=2)
    helps, refusals = ([way() for _ in range(REPETITIONS)] for way in (preflight_help, refused))
    record = start("footprint", "python -m bench.footprint")
    record.head("figure", "median (range)", "bound", "")
    for name, values, bound in (
        ("worker listens after", [seconds for seconds, _, _ in workers], 0.7),
        ("import worker.client", imports, 0.3),
        ("preflight --help", helps, 0.15),
        ("a job that is refused (epochs 0)", refusals, 0.3),
    ):
        record.row(name, samples(values, ".3f", " s"), f"{bound:g} s", judged(statistics.median(values) <= bound))
    resident = [size for _, size, _ in workers]
    record.row("idle worker, resident", samples([size / 2**20 for size in resident], ".1f", " MiB"), "60 MB",
               judged(statistics.median(resident) <= 60e6))  # fmt: skip
    record.row("torch in the idle worker", str(any(torch for _, _, torch in workers)), "False", "")
    record.write()


if __name__ == "__main__":
    main()
