"""Cost of predictions for a training in the same container: its seconds with requests and without, in turns."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from tools.bench.container import Container, container
from tools.bench.pieces import Row
from tools.bench.predict.scene import Connection, Target, picture, scene
from tools.bench.record import judged, samples
from worker.config.settings import load

CPUS: Final = (1.0, 2.0)
MEMORY: Final = 4 << 30
RATE: Final = 50
"""Requests a second."""
CLIENTS: Final = 4
PAIRS: Final = 5
SAMPLES: Final = {1.0: 50_000, 2.0: 60_000}
"""Samples of the training, which takes some ten seconds."""
SLOWER: Final = 1.1
"""Times as long as without requests that a training may take."""


def training() -> list[Row]:
    """Return how much longer a training takes, for containers of one core and of two."""
    return [row for cpus in CPUS for row in beside(cpus)]


def beside(cpus: float) -> list[Row]:
    """Return the row of one container."""
    alone, asked, statuses = list[float](), list[float](), list[int]()
    cores = os.sched_getaffinity(0)
    with (
        container(cpus, MEMORY) as box,
        scene(box.enter, cores) as running,
        tempfile.TemporaryDirectory(prefix="preflight-predict-") as place,
    ):
        os.sched_setaffinity(0, cores)  # the clients are outside of the container
        Connection(running.ours).ask(picture(10))
        _train(Path(place), 1_000, box)  # prepares the data
        for turn in range(PAIRS):
            for has_requests in (False, True) if turn % 2 else (True, False):
                with Requests(running.ours, has_requests=has_requests) as requests:
                    seconds = _train(Path(place), SAMPLES[cpus], box)
                (asked if has_requests else alone).append(seconds)
                statuses += requests.statuses
    ratios = [one / other for one, other in zip(asked, alone, strict=True)]
    refused = statuses.count(429)
    if len(statuses) - refused != statuses.count(200):
        raise SystemExit(f"requests failed: {sorted({*statuses} - {200, 429})}")
    return [
        (f"training in a container of {cpus:g} CPU, {RATE} requests a second",
         samples(asked, ".1f", " s"), f"{samples(alone, '.1f', ' s')} without",
         f"{samples(ratios, '.2f')} times as long, at most {SLOWER:g}; {refused} of {len(statuses):,} answered by 429",
         judged(statistics.median(ratios) <= SLOWER)),
    ]  # fmt: skip


def _train(place: Path, count: int, box: Container) -> float:
    """Return the seconds of a training of one epoch, its start left out."""
    environment = {
        **os.environ, "PREFLIGHT_DATA_DIR": str(load().data_dir), "PREFLIGHT_REPORT": "off",
        **{f"PREFLIGHT_{name}_DIR": str(place / name.lower()) for name in ("CACHE", "STATE", "ARTIFACT")},
    }  # fmt: skip
    words = [
        *box.enter, sys.executable, "-P", "-m", "worker.cli", "train", "--dataset", "mnist", "--model", "cnn",
        "--epochs", "1", "--no-calibrate", "--json", "--set", f"train_samples={count}", "--set",
        "validation_samples=0",
    ]  # fmt: skip
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    seconds: float = json.loads(done.stdout)["train_s"]
    return seconds


class Requests:
    """Clients that ask `RATE` times a second together, whatever the answers take, or not at all."""

    def __init__(self, target: Target, *, has_requests: bool) -> None:
        """Ask `target` while the context is open."""
        self.statuses: list[int] = []
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(target, number)) for number in range(CLIENTS * has_requests)
        ]

    def __enter__(self) -> "Requests":
        """Start the clients."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the clients."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, target: Target, number: int) -> None:
        connection, apart = Connection(target), CLIENTS / RATE
        at = time.monotonic() + number / RATE
        while not self._ended.wait(max(0.0, at - time.monotonic())):
            self.statuses.append(connection.send(picture(9 + number))[0])
            at += apart
