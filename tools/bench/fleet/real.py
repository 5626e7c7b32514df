"""Real workers: `preflight worker` in forks of one process.

python -m tools.bench.fleet.real COUNT
"""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from redis import Redis

from worker.config.settings import load, service_environment
from worker.queue.processes import run_processes
from worker.queue.service import serve

START_TIMEOUT: Final = 180.0
QUEUE: Final = "preflight"


@contextmanager
def real_workers(redis: Redis, url: str, count: int, directory: Path) -> Iterator["psutil.Process"]:
    """Run `count` workers; yields their parent once all are registered."""
    settings = load(
        redis_url=url, state_dir=directory / "state", artifact_dir=directory / "artifacts",
        cache_dir=directory / "cache", data_dir=directory / "data", standby="off",
        report="off", packing="off",  # those of a fleet are alone in their containers, and wait for no other's turn
    )  # fmt: skip
    with (directory / "workers.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.fleet.real", str(count)], env=service_environment(settings),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while redis.scard(f"rq:workers:{QUEUE}") < count:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{count} workers did not start; look at {directory / 'workers.log'}")
            time.sleep(0.2)
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def held_bytes(parent: psutil.Process) -> float:
    """Return the mean memory of a worker, with the memory that forks share divided among them (PSS)."""
    held = [child.memory_full_info().pss for child in parent.children()]
    return sum(held) / len(held)


def main() -> None:
    """Run the workers until a signal."""
    settings, everywhere = load(), frozenset(os.sched_getaffinity(0))
    gc.freeze()
    run_processes([everywhere] * int(sys.argv[1]), partial(serve, settings))


if __name__ == "__main__":
    main()
