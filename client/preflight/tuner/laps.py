"""Laps: consecutive optimizer steps that together take long enough to be timed."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..container.resources import Quota
from ..container.work_clock import sustained

LAP_SECONDS: Final = 0.05
"""Least seconds of a lap: a neighbour's time slice, 3 to 24 ms, is part of a lap and no outlier in it."""
MOST_STEPS: Final = 100_000
"""Most steps of one lap: steps of 1 us would still be looked at ten times a second."""
PAUSE: Final = 4.0
"""Times the median of its block from which on a lap holds an evaluation, a checkpoint or a new epoch's start."""
SHORTEST_PAUSE: Final = 0.2
"""Seconds beyond the median that such a lap takes at least: two periods of a CPU quota."""


@dataclass(frozen=True, slots=True)
class Lap:
    """Consecutive steps."""

    steps: int
    wall: float
    """Wall time in seconds."""
    cpu: float
    """CPU seconds of this process."""

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.wall / self.steps


class LapClock:
    """Times laps; between two ends of laps a step costs one subtraction."""

    def __init__(self) -> None:
        """Begin the first lap now; it is of one step."""
        self._steps = 1
        self._paused: tuple[float, float] | None = None
        self.begin()

    def begin(self) -> None:
        """Begin a lap now, of as many steps as before."""
        self._left = self._steps
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def pause(self) -> None:
        """Leave out the time until `resume`."""
        self._paused = (time.process_time(), time.perf_counter())

    def resume(self) -> None:
        """Continue the lap that was paused."""
        if self._paused is not None:
            cpu, wall = self._paused
            self._cpu += time.process_time() - cpu
            self._wall += time.perf_counter() - wall
            self._paused = None

    @property
    def pending(self) -> int:
        """Steps of the lap that has not ended."""
        return self._steps - self._left

    def tick(self) -> Lap | None:
        """Count a step; return the lap where it was the last one of it."""
        self._left -= 1
        if self._left:
            return None
        wall = time.perf_counter()
        cpu = time.process_time()
        lap = Lap(self._steps, max(wall - self._wall, 1e-9), cpu - self._cpu)
        # Not by one slow or quick lap alone: at most ten times as many steps as before.
        fitting = int(LAP_SECONDS / lap.step) + 1
        self._steps = max(1, min(fitting, 10 * self._steps, MOST_STEPS))
        self._left, self._wall, self._cpu = self._steps, wall, cpu
        return lap


@dataclass(frozen=True, slots=True)
class Block:
    """Laps under one setting."""

    seconds: tuple[float, ...]
    """Seconds of a step, by lap, in the long run of a quota; laps with a pause are left out."""
    steps: int
    wall: float
    """Wall time in seconds, pauses included."""
    stopped: bool = False
    """Whether it was ended early because it was clearly slower than it should be."""

    @property
    def step(self) -> float:
        """Mean seconds of a step."""
        return statistics.fmean(self.seconds)


def without_pauses(laps: Sequence[Lap]) -> list[Lap]:
    """Return the laps in which nothing but training was done."""
    median = statistics.median(lap.step for lap in laps)
    return [lap for lap in laps if lap.step <= PAUSE * median or lap.wall <= lap.steps * median + SHORTEST_PAUSE]


def block_of(
    laps: Sequence[Lap], quota: Quota | None, throttled_s: float | None, children_s: float, *, stopped: bool = False
) -> Block:
    """Return laps as a block.

    `throttled_s` and `children_s`: the throttling that cpu.stat counted meanwhile, and CPU seconds of loader workers.
    """
    kept = without_pauses(laps)
    if quota is None:
        seconds = tuple(lap.step for lap in kept)
    else:
        beside = children_s / len(laps)
        timed = sustained(
            [lap.wall for lap in kept], [lap.cpu + beside for lap in kept], quota,
            throttled_s if len(kept) == len(laps) else None,
        )  # fmt: skip
        seconds = tuple(total / lap.steps for total, lap in zip(timed.seconds, kept, strict=True))
    return Block(seconds, sum(lap.steps for lap in laps), sum(lap.wall for lap in laps), stopped)
