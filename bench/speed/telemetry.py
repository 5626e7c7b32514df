"""Cost of telemetry: progress, epochs and metrics from the training into Redis.

    python -m bench.speed telemetry

A real worker takes a real job from a real Redis. Of its processors' time, everything that is not the training child
counts as telling: the worker, its supervisor, and what Redis does beyond what it does without anybody. Of the child's
time, all that the profile calls `other` does: reports and whatever else is not data, forward, loss, backward,
optimizer, validation or checkpoint. That is more than telemetry, some of it twice (a supervisor that is woken may run
before the training goes on), and no difference between two noisy runs.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from bench.calibration.common import mnist
from bench.record import judged, samples, start
from bench.speed.common import BenchOptions, fast_precision
from preflight import Client
from preflight.redis.server.embedded import redis_server
from preflight.wire import JOB_TYPE, OwnPlan, Progress, TrainJob, TrainResult
from training.loop import child as training_child
from worker.config.settings import load, service_environment

ROUNDS: Final = 5
EPOCHS: Final = 3
LOOK_EVERY: Final = 0.05
IDLE_SECONDS: Final = 5.0
"""For which Redis is watched without anybody."""
BOUND: Final = 0.005


def main(asked: BenchOptions) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    record = start("telemetry", "python -m bench.speed telemetry")
    mnist()
    shares, inside, outside, events = [], [], [], []
    for seed in range(ROUNDS):
        result, share, count = _job(seed)
        profile = result.profile
        if profile is None:
            raise RuntimeError("the job has no profile")
        inside.append(profile.other_s / profile.total_s)
        outside.append(share)
        shares.append(inside[-1] + outside[-1])
        events.append(count)
    record.head(f"{EPOCHS} epochs of cnn", "in the training", "beside it", "together", "events", "bound", "")
    figures = [samples(each, ".2%") for each in (inside, outside, shares)]
    record.row("share of the time", *figures, samples(events, ".0f"), f"{BOUND:.1%}",
        judged(sorted(shares)[ROUNDS // 2] <= BOUND))  # fmt: skip
    record.write()


def _job(seed: int) -> tuple[TrainResult, float, int]:
    """Run a job; return its result, the share of the processors that others took beside it, and its progress events."""
    plan = OwnPlan(precision=fast_precision(), memory_format="channels_last")
    job = TrainJob(
        type=JOB_TYPE, dataset="mnist", epochs=EPOCHS, seed=seed, calibrate=False, profile=True, plan=plan
    )  # fmt: skip
    with redis_server() as url, tempfile.TemporaryDirectory(prefix="bench-telemetry-") as name:
        environment = {**service_environment(load(redis_url=url)), "PREFLIGHT_ARTIFACT_DIR": name,
                       "PREFLIGHT_STATE_DIR": name}  # fmt: skip
        idle = _idle()
        client = Client(url)
        job_id = client.enqueue(job).job_id
        worker = subprocess.Popen([sys.executable, "-P", "-m", "worker.cli", "worker", "--burst"], env=environment,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        looks: list[tuple[float, float]] = []
        while worker.poll() is None:
            now, family = time.perf_counter(), list(_family())
            if any(training_child.MODULE in command for _, command in family):
                looks.append((now, sum(spent for spent, command in family if training_child.MODULE not in command)))
            time.sleep(LOOK_EVERY)
        seconds, spent = (last - first for first, last in zip(looks[0], looks[-1], strict=True))
        share = (spent / seconds - idle) / len(os.sched_getaffinity(0))
        result = client.result(job_id)
        if result is None:
            raise RuntimeError(f"the job did not finish: {client.status(job_id)}")
        return result, share, sum(isinstance(event, Progress) for event in client.events(job_id))


def _idle() -> float:
    """Return the processor seconds a second of the Redis server by itself."""
    before = sum(spent for spent, _ in _family())
    time.sleep(IDLE_SECONDS)
    return (sum(spent for spent, _ in _family()) - before) / IDLE_SECONDS


def _family() -> Iterator[tuple[float, list[str]]]:
    """Yield processor seconds and command line of the Redis server, the worker and all below it.

    The kernel's scheduler counts them in nanoseconds (sched-stats.rst); its accounts by hundredths are too coarse.
    """
    for process in psutil.Process().children(recursive=True):
        try:
            tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
            yield sum(int(task.read_text().split()[0]) for task in tasks) / 1e9, process.cmdline()
        except (psutil.Error, OSError):
            continue
