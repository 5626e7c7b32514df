"""Steadiness: whether the machine itself kept its speed from calibration to training.

    python -m tools.bench.calibration.matrix.steadiness THREADS

times the reference workload until its input ends. Other tenants of the host use caches, memory and power, which no
counter of the kernel shows. Every run counts; those in which the machine kept its speed are counted separately, too.
"""

import json
import math
import os
import select
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Self

import torch
from pydantic import TypeAdapter

from tools.bench.calibration.matrix.cells import Cell
from tools.faults.means import NotHere
from training.system.reference_workload import ReferenceWorkload

EVERY: Final = 0.5
"""Seconds between two samples."""
BATCH: Final = 16
"""Samples of the workload, which takes 2 ms then: measuring must not slow the training."""
RUNS: Final = 4
"""Runs of a sample; the shortest counts, after one that fetches the data that the training drove out of the caches."""
MEASURED: Final = timedelta(seconds=2)
"""Time before the end of a calibration, in which it measures the plan that is kept."""
FIRST: Final = os.SCHED_FIFO, os.sched_param(1)
"""Priority over a training on all processors: else a sample would include waiting for it. A nice value counts within
a session or a cgroup alone."""

SAMPLES: Final = TypeAdapter(tuple[tuple[float, float], ...])


class Pulse:
    """Samples the machine's speed while it is entered, on as many threads as the quota of a cell has processors.

    Disturbances of threads that wait for each other are seen, too; matrix products on one processor do not show them
    (docs/decisions.md).
    """

    def __init__(self, cell: Cell) -> None:
        threads = min(math.ceil(cell.processors), len(os.sched_getaffinity(0)))
        self._command = [sys.executable, "-m", "tools.bench.calibration.matrix.steadiness", str(threads)]
        self._samples: Sequence[tuple[float, float]] = ()
        """Time of each sample, in seconds since the epoch, and the seconds that the workload took."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self._process.stdout is None or not self._process.stdout.readline():  # it is warm
            raise NotHere("the machine's speed cannot be sampled; it takes the right to use SCHED_FIFO (CAP_SYS_NICE)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        printed, _ = self._process.communicate()
        self._samples = SAMPLES.validate_json(printed)

    def before(self, measured: datetime) -> float | None:
        """Return the mean seconds of the workload in the last `MEASURED` seconds of a calibration."""
        return self.between(measured - MEASURED, measured)

    def between(self, first: datetime, last: datetime) -> float | None:
        """Return the mean seconds of the workload in a phase; None where that was too short for a sample."""
        found = [seconds for at, seconds in self._samples if first.timestamp() <= at <= last.timestamp()]
        return statistics.fmean(found) if found else None

    def mean(self) -> float | None:
        """Return the mean seconds of the workload while it was entered; None where that was too short for a sample."""
        return statistics.fmean(seconds for _, seconds in self._samples) if self._samples else None


def main() -> None:
    """Sample until the input ends, and print the samples."""
    os.sched_setscheduler(0, *FIRST)  # before torch starts its threads
    torch.set_num_threads(int(sys.argv[1]))
    workload, samples = ReferenceWorkload(BATCH), []
    print("warm", flush=True)
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        workload.run()
        samples.append((time.time(), min(timeit.repeat(workload.run, number=1, repeat=RUNS))))
    print(json.dumps(samples))


if __name__ == "__main__":
    main()
