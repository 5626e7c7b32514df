"""What a CPU quota makes of training steps, and how well short series of them tell it.

    python -m bench.calibration quota

For each quota, a process in a cgroup of its own takes steps of `cnn` for 8 s. Their wall time per step is the truth;
series of them are judged by the median step, by wall time, and by the work clock, as calibration does.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Final

from bench.calibration.common import BenchOptions, mnist
from bench.record import samples, start
from training.system.resources import Quota
from training.system.timing.work_clock import sustained

CELLS: Final = (
    (0.25, 1, 100_000), (0.5, 1, 100_000), (0.5, 2, 100_000), (0.75, 1, 100_000), (1.0, 1, 100_000),
    (1.0, 2, 100_000), (1.5, 2, 100_000), (0.5, 1, 10_000), (1.5, 2, 10_000),
)  # fmt: skip
"""Processors of the quota, threads, microseconds of its period."""
SECONDS: Final = 8.0
SERIES_SECONDS: Final = (0.2, 0.8)
STEPS: Final = 2
"""Fewest of a series."""
CONTROLLER: Final = Path("/sys/fs/cgroup/cpu")


def main(asked: BenchOptions) -> bool:  # noqa: ARG001 - the signature of every part
    """Measure and print."""
    record = start("calibration-quota", "python -m bench.calibration quota", "process starts and imports")
    mnist()
    record.head("quota, threads, period", "a step, ms", "CPU used / quota", "series, s", "off by the median step",
        "by wall time", "by the work clock")  # fmt: skip
    for processors, threads, period_us in CELLS:
        walls, cpus, whole_s = taken(processors, threads, period_us)
        truth = whole_s / len(walls)
        for series_s in SERIES_SECONDS:
            count = max(STEPS, int(series_s / truth))
            series = [slice(at, at + count) for at in range(0, len(walls) - count, count)]
            estimates = (
                [statistics.median(walls[each]) for each in series],
                [statistics.fmean(walls[each]) for each in series],
                [paced(walls[each], cpus[each], processors, period_us) for each in series],
            )
            record.row(
                f"{processors} CPU, {threads}, {period_us // 1000} ms", f"{1000 * truth:.1f}",
                f"{sum(cpus) / whole_s / processors:.3f}", f"{series_s}",
                *(samples([seconds / truth - 1 for seconds in each], "+.0%") for each in estimates),
            )  # fmt: skip
    record.write()
    return True


def paced(walls: Sequence[float], cpus: Sequence[float], processors: float, period_us: int) -> float:
    """Return the median step of the work clock, which knows nothing of the series around it."""
    quota = Quota(Fraction(processors), Path(), period_us / 1e6)
    return statistics.median(sustained(walls, cpus, quota, None).seconds)


def taken(processors: float, threads: int, period_us: int) -> tuple[Sequence[float], Sequence[float], float]:
    """Return wall and CPU seconds of each step that a process took, and the wall seconds of all."""
    with cgroup(processors, period_us) as directory:
        command = [sys.executable, "-m", "bench.calibration.quota", str(directory), str(threads)]
        walls, cpus, whole_s = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return walls, cpus, whole_s


@contextmanager
def cgroup(processors: float, period_us: int) -> Iterator[Path]:
    """Make a cgroup of v1 with a quota, and remove it."""
    directory = CONTROLLER / f"bench-quota-{os.getpid()}"
    directory.mkdir()
    try:
        (directory / "cpu.cfs_period_us").write_text(str(period_us))
        (directory / "cpu.cfs_quota_us").write_text(str(int(processors * period_us)))
        yield directory
    finally:
        time.sleep(0.1)  # the kernel lets go of an ended process a little later
        directory.rmdir()


def child() -> None:
    """Take steps in a cgroup, and print what they took."""
    from calibration.measure.candidate import Candidate
    from training.config.plan import Plan
    from training.config.spec import TrainSpec
    from training.data.dataset_store import open_dataset
    from training.loop.train_step import prepare_process

    plan = Plan(threads=int(sys.argv[2]), micro_batch=128)
    prepare_process(plan)
    candidate = Candidate(TrainSpec(dataset="mnist", model="cnn"), plan, open_dataset(mnist().path))
    candidate.run(5)
    Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
    candidate.run(2)
    walls, cpus, began = [], [], time.perf_counter()
    wall, cpu = began, time.process_time()
    while wall - began < SECONDS:
        candidate.run(1)
        cpu_now, wall_now = time.process_time(), time.perf_counter()
        walls.append(wall_now - wall)
        cpus.append(cpu_now - cpu)
        wall, cpu = wall_now, cpu_now
    print(json.dumps([walls, cpus, wall - began]))


if __name__ == "__main__":
    child()
