"""Jobs an hour: how many finished lately, from a counter that is read now and then."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

SPAN_SECONDS: Final = 3600.0
LEAST_SECONDS: Final = 60.0
"""Shortest span of a rate: over a shorter one a single job would count as dozens an hour."""
SAMPLE_SECONDS: Final = 30.0
"""Least seconds between two readings that are kept."""


class JobPace:
    """The readings of the last hour."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._readings: deque[tuple[float, float]] = deque()
        """Monotonic time, and the jobs that had finished by then."""

    def observe(self, finished: float) -> float | None:
        """Take a reading of the counter; return the jobs an hour since the first one, None for the first minute."""
        now = self._clock()
        if self._readings and finished < self._readings[-1][1]:
            self._readings.clear()  # Redis lost its data
        if not self._readings or now - self._readings[-1][0] >= SAMPLE_SECONDS:
            self._readings.append((now, finished))
        while now - self._readings[0][0] > SPAN_SECONDS:
            self._readings.popleft()
        since, before = self._readings[0]
        return (finished - before) * 3600 / (now - since) if now - since >= LEAST_SECONDS else None
