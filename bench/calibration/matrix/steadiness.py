"""Steadiness: whether the machine itself kept its speed from calibration to training, as a quiet one does.

Other tenants of the host take caches, memory and power; the kernel shows nothing of it. A prediction is judged where
the machine was as fast when it trained as when it was measured.
"""

import statistics
import threading
import time
from datetime import datetime
from types import TracebackType
from typing import Final, Self

import torch

EVERY: Final = 0.25
"""Seconds between two samples, each of which takes some milliseconds of one processor."""
SIDE: Final = 384
"""Rows of the square matrices that are multiplied."""
BYTES: Final = 16 << 20
"""That are copied: more than caches hold for one tenant."""


class Pulse:
    """Samples the machine's speed in a thread of its own while it is entered."""

    def __init__(self) -> None:
        self._samples: list[tuple[float, float]] = []
        """When, in seconds since the epoch, and the processor seconds that the sample took."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._matrix = torch.rand(SIDE, SIDE)
        self._source, self._target = torch.zeros(BYTES, dtype=torch.uint8), torch.zeros(BYTES, dtype=torch.uint8)

    def __enter__(self) -> Self:
        torch.set_num_threads(1)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def change(self, calibrating: datetime, training: datetime, end: datetime) -> float | None:
        """Return how much longer the machine took for the same while it trained; None where a phase was too short.

        Args:
            calibrating: when calibration began to measure.
            training: when it ended and training began.
            end: of the training.
        """
        before = self._between(calibrating, training)
        after = self._between(training, end)
        return statistics.median(after) / statistics.median(before) - 1 if before and after else None

    def _between(self, first: datetime, last: datetime) -> list[float]:
        return [seconds for at, seconds in self._samples if first.timestamp() <= at <= last.timestamp()]

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            at, began = time.time(), time.thread_time()
            torch.mm(self._matrix, self._matrix)
            self._target.copy_(self._source)
            self._samples.append((at, time.thread_time() - began))
