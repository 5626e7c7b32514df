"""Reference workload: a small training step, timed at calibration and again when a prediction is wrong.

No counter of a virtual machine's kernel shows what neighbours take of shared cores, caches, memory or power; a slower
reference workload does. A plain loop would not: threads that wait for each other suffer most from late wake-ups.
"""

import statistics
import time
from typing import Final

import torch
from torch import nn
from torch.nn import functional as F

from preflight.container.resources import binding_quota
from preflight.container.work_clock import WorkClock
from training.system.requirements import leave_out_onednn

SAMPLES: Final = 64
SIDE: Final = 28
CLASSES: Final = 10
WARM_UP: Final = 2
"""Runs that do not count: they build primitives and fetch pages."""
SECONDS: Final = 0.05
"""Duration of a measurement."""


def time_reference_workload(threads: int, seconds: float = SECONDS) -> float:
    """Return the mean seconds of the workload on `threads` threads, repeated for `seconds`; in the long run of a quota.

    Not the median: a hypervisor takes a processor away for some 10 ms at a time, and all threads wait then.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    workload = ReferenceWorkload()
    clock, until = WorkClock(binding_quota()), time.perf_counter() + seconds
    workload.run()
    clock.lap()
    while time.perf_counter() < until:
        workload.run()
        clock.lap()
    torch.set_num_threads(before)
    return statistics.fmean(clock.timed().seconds)


class ReferenceWorkload:
    """A training step of a small network on zeros, built and warm."""

    def __init__(self, samples: int = SAMPLES) -> None:
        """Build the network for steps of `samples` samples."""
        leave_out_onednn()
        with torch.random.fork_rng(devices=()):  # a training in this process keeps its random numbers
            self._network = nn.Sequential(
                nn.Conv2d(1, 32, 4, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3),
                nn.ReLU(), nn.Flatten(), nn.Linear(32 * 9 * 9, CLASSES),
            )  # fmt: skip
        self._images, self._labels = torch.zeros(samples, 1, SIDE, SIDE), torch.zeros(samples, dtype=torch.int64)
        for _ in range(WARM_UP):
            self.run()

    def run(self) -> None:
        """Run a forward and a backward pass; gradients add up."""
        torch.autograd.backward(F.cross_entropy(self._network(self._images), self._labels))
