"""Memory and start of an idle worker, and start-up of the light commands.

    PYTHONPATH=tests python -m tools.bench.footprint [--image-python PYTHON]

Prints a Markdown table: median and range over the repetitions. Each figure is of a whole real process. An idle worker,
and what standby processes add, are measured with the packages of the image, too, where an interpreter with them is
named: torch's CPU build, and neither rich nor MLflow, whose packages structlog and redis import where they are there.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import psutil
from redis import Redis
from support.worker.process_tree import Held, settled_tree

from preflight.redis.server.embedded import redis_server
from tools.bench.job.many import SMALL
from tools.bench.job.service import running_worker
from tools.bench.record import Record, judged, samples, start
from tools.bench.versions import ROOT
from worker.config.settings import load, service_environment

REPETITIONS: Final = 7
STANDBY_REPETITIONS: Final = 3
WITHOUT_STANDBY: Final = {"PREFLIGHT_STANDBY": "off"}
TORCH_VERSION: Final = "import importlib.metadata; print(importlib.metadata.version('torch'))"


def idle_worker(python: Path) -> tuple[float, int, bool]:
    """Return seconds until a worker listens, its resident bytes two seconds later, and whether torch is loaded."""
    with redis_server() as url, tempfile.TemporaryFile() as log:
        registered, began = Redis.from_url(url), time.perf_counter()
        worker = subprocess.Popen(
            [str(python.absolute()), "-P", "-m", "worker.cli", "worker"],
            env={**service_environment(load(redis_url=url)), **WITHOUT_STANDBY}, stdout=log, stderr=log,
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


def resident(workers: Sequence[tuple[float, int, bool]], packages: str, record: Record) -> None:
    """Print the memory of idle workers."""
    sizes = [size for _, size, _ in workers]
    record.row(f"idle worker, resident, {packages}", samples([size / 2**20 for size in sizes], ".1f", " MiB"), "60 MB",
               judged(statistics.median(sizes) <= 60e6))  # fmt: skip


def held_after_job(python: Path, **variables: str) -> int:
    """Return the bytes that a worker and all its children hold after a job, memory that they share counted once."""
    with running_worker(ROOT, python, **variables) as service:
        service.run(**SMALL)
        return Held.by(settled_tree(service.process.pid)).pss


def standby(python: Path, record: Record) -> None:
    """Print the memory that the standby processes of a worker add."""
    added = [held_after_job(python) - held_after_job(python, **WITHOUT_STANDBY) for _ in range(STANDBY_REPETITIONS)]
    torch = subprocess.check_output([python, "-P", "-c", TORCH_VERSION], text=True).strip()
    record.row(f"standby adds, PSS, torch {torch}", samples([size / 2**20 for size in added], ".1f", " MiB"), "250 MB",
               judged(statistics.median(added) <= 250e6))  # fmt: skip


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.footprint", description=__doc__)
    parser.add_argument("--image-python", type=Path, help="an interpreter with the packages of the image")
    image_python: Path | None = parser.parse_args(arguments).image_python
    workers = [idle_worker(Path(sys.executable)) for _ in range(REPETITIONS)]
    importing = "import time; t = time.perf_counter(); from preflight import Client; print(time.perf_counter() - t)"
    imports = [float(subprocess.check_output([sys.executable, "-P", "-c", importing])) for _ in range(REPETITIONS)]
    preflight = str(Path(sys.executable).parent / "preflight")
    preflight_help, refused = seconds_of(preflight, "--help"), seconds_of(preflight, "train", "--epochs", "0", code=2)
    helps, refusals = ([way() for _ in range(REPETITIONS)] for way in (preflight_help, refused))
    record = start(
        "footprint", "python -m tools.bench.footprint" + " --image-python PYTHON" * (image_python is not None)
    )
    record.head("figure", "median (range)", "bound", "")
    for name, values, bound in (
        ("worker listens after", [seconds for seconds, _, _ in workers], 0.7),
        ("from preflight import Client", imports, 0.3),
        ("preflight --help", helps, 0.15),
        ("a job that is refused (epochs 0)", refusals, 0.3),
    ):
        record.row(name, samples(values, ".3f", " s"), f"{bound:g} s", judged(statistics.median(values) <= bound))
    resident(workers, "every extra", record)
    if image_python is not None:
        resident([idle_worker(image_python) for _ in range(REPETITIONS)], "the image's packages", record)
    record.row("torch in the idle worker", str(any(torch for _, _, torch in workers)), "False", "")
    standby(image_python or Path(sys.executable), record)
    record.write()


if __name__ == "__main__":
    main()
