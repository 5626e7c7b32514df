"""A fixed piece of work: timed when a plan is calibrated, and again where training is not as it was predicted.

What a virtual machine's neighbours take of shared cores, caches, memory or power shows in no counter of its kernel; it
shows in that the same work takes longer. The work is a small training step of its own, because what hurts one most,
that threads which wait for each other are woken late, hurts no plain loop.
"""

import time
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SAMPLES: Final = 64
SIDE: Final = 28
CLASSES: Final = 10
WARM_UP: Final = 2
"""Runs that do not count: they build primitives and fetch pages."""
SECONDS: Final = 0.05
"""For which the work is done again and again."""


def gauge(threads: int, seconds: float = SECONDS) -> float:
    """Return the mean seconds that the work takes on `threads` threads, done for `seconds`.

    The mean, not the median: a hypervisor takes a processor away for some 10 ms at a time, and threads that work
    together all wait then.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    with torch.random.fork_rng(devices=()):  # whoever trains here shall draw the same numbers as without
        network = nn.Sequential(
            nn.Conv2d(1, 32, 4, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 9 * 9, CLASSES),
        )  # fmt: skip
    images, labels = torch.zeros(SAMPLES, 1, SIDE, SIDE), torch.zeros(SAMPLES, dtype=torch.int64)
    for _ in range(WARM_UP):
        _work(network, images, labels)
    began, runs = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < seconds or not runs:
        _work(network, images, labels)
        runs += 1
    torch.set_num_threads(before)
    return elapsed / runs


def _work(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    torch.autograd.backward(F.cross_entropy(network(images), labels))
