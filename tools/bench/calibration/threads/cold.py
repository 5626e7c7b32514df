"""Cold jobs on a shared machine: with nothing in the plan cache, beside busy processes and beside another worker.

Every run counts: none is left out, and none is made again.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from calibration.cache.signature import has_bfloat16
from preflight import Client
from preflight.redis.server.embedded import redis_server
from preflight.wire import JOB_TYPE, TrainJob
from tools.bench.calibration.common import PREFLIGHT
from tools.bench.calibration.matrix.main import neighbours
from tools.bench.record import Record, judged, samples, start

RUNS: Final[Mapping[int, int]] = {1: 20, 2: 10, 4: 10}
"""Busy processes -> cold runs beside them."""
FIXED_RUNS: Final = 2
"""Runs of the best fixed plan beside them, before; the quicker one counts."""
FIXED: Final = ("plan.threads=1", "plan.memory_format=channels_last")
TIMES: Final = 1.5
LATER: Final = 10.0
"""A cold run may take `TIMES` as long as the best fixed plan, or `LATER` seconds more, whichever is more."""
JOBS: Final = 4
JOB_EPOCHS: Final = 2
ROUNDS: Final = 2
WORKERS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "one worker": ((),), "two workers": ((), ()), "one worker, `--processes 2`": (("--processes", "2"),),
}  # fmt: skip
"""Name -> options of each worker."""
NO_WORSE: Final = 1.05
"""Two workers are no slower than one within this: such a series repeats within 5 % or so."""


def measure_cold() -> None:
    """Print and write the seconds of cold jobs beside neighbours, and of four jobs by one and by two workers."""
    record = start("calibration-cold", "python -m tools.bench.calibration cold", "nothing: whole commands")
    _beside_neighbours(record)
    _beside_each_other(record)
    record.write()


def _beside_neighbours(record: Record) -> None:
    bound = f"bound: {TIMES:g}x or {LATER:.0f} s more"
    record.head("`while True: pass`", "best fixed plan, s", "cold job, s", "slowest", bound, "")
    for count, runs in RUNS.items():
        with tempfile.TemporaryDirectory(prefix="cold-") as name, neighbours(count):
            place = Path(name)
            _train(place, place / "fixed", _fixed())  # prepares the data, which each cold run does, too
            fixed = [_train(place, place / "fixed", _fixed()) for _ in range(FIXED_RUNS)]
            cold = [_train(place, place / f"cold-{number}") for number in range(runs)]
        best, most = min(fixed), max(TIMES * min(fixed), min(fixed) + LATER)
        within = sum(seconds <= most for seconds in cold)
        record.row(
            str(count), samples(fixed, ".1f"), samples(cold, ".1f"), f"{max(cold) / best:.2f}x",
            f"{within} of {runs} within {most:.1f} s", judged(within == runs),
        )  # fmt: skip


def _fixed() -> tuple[str, ...]:
    """Return the best plan by hand beside neighbours: without its instructions bfloat16 is slower than float32."""
    return (*FIXED, f"plan.precision={'bfloat16' if has_bfloat16() else 'float32'}")


def _train(place: Path, cache: Path, fixed: tuple[str, ...] = ()) -> float:
    """Return the seconds of a whole training command; an end in error counts as infinitely long."""
    options = ["--no-calibrate", *(word for value in fixed for word in ("--set", value))] if fixed else []
    began = time.perf_counter()
    done = subprocess.run(
        [PREFLIGHT, "train", "--dataset", "mnist", "--model", "cnn", "--epochs", "1", *options],
        env=_environment(place, cache), capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        print(done.stderr.decode(errors="replace")[-2000:], file=sys.stderr)
        return float("inf")
    return time.perf_counter() - began


def _environment(place: Path, cache: Path) -> dict[str, str]:
    return {
        **os.environ, "PREFLIGHT_STATE_DIR": str(place / "state"), "PREFLIGHT_ARTIFACT_DIR": str(place / "artifacts"),
        "PREFLIGHT_CACHE_DIR": str(cache), "PREFLIGHT_REPORT": "off", "PREFLIGHT_LOG_FORMAT": "json",
    }  # fmt: skip


def _beside_each_other(record: Record) -> None:
    record.head(f"{JOBS} jobs of {JOB_EPOCHS} epochs", "seconds", "against one worker")
    seconds: dict[str, list[float]] = {name: [] for name in WORKERS}
    for _ in range(ROUNDS):
        for name, options in WORKERS.items():
            seconds[name].append(_serve(options))
    alone = sum(seconds["one worker"])
    for name, taken in seconds.items():
        record.row(name, samples(taken, ".1f"), f"{sum(taken) / alone:.2f}x")
    ratio = sum(seconds["two workers"]) / alone
    record.note(f"Two workers against one: {ratio:.2f}x, bound {NO_WORSE:g}x: {judged(ratio <= NO_WORSE)}.")


def _serve(workers: tuple[tuple[str, ...], ...]) -> float:
    """Return the seconds in which workers with these options, on caches of their own, finish all jobs."""
    with redis_server() as url, tempfile.TemporaryDirectory(prefix="cold-") as name, ExitStack() as stack:
        client = Client(url)
        job = {"type": JOB_TYPE, "dataset": "mnist", "model": "cnn", "epochs": JOB_EPOCHS}
        for number in range(JOBS):
            client.enqueue(TrainJob.model_validate({**job, "job_id": f"job-{number}"}))
        began = time.perf_counter()
        running = [
            stack.enter_context(_worker(url, Path(name) / str(number), each)) for number, each in enumerate(workers)
        ]
        for worker in running:
            worker.wait()
        taken = time.perf_counter() - began
        states = [client.status(f"job-{number}").status for number in range(JOBS)]
    return taken if states == ["finished"] * JOBS else float("inf")


@contextmanager
def _worker(url: str, place: Path, options: tuple[str, ...]) -> Iterator["subprocess.Popen[bytes]"]:
    place.mkdir()
    with (place / "log").open("wb") as log:
        worker = subprocess.Popen(
            [PREFLIGHT, "worker", "--burst", *options], env={**_environment(place, place / "cache"), "REDIS_URL": url},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield worker
    finally:
        worker.terminate()
        worker.wait()
