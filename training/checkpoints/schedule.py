"""Checkpoint schedule: when one is due, from the time since the last one and from its cost."""

import time
from typing import Final

SECONDS: Final = (15.0, 60.0)
"""Least and most seconds between two checkpoints by time, where nothing else is asked for."""
COST: Final = 0.01
"""Share of the time that checkpoints may take: those at the ends of epochs are left out beyond it, and those by time,
where nothing else is asked for, made more seldom."""


class CheckpointSchedule:
    """Decides by time and cost whether to make a checkpoint."""

    def __init__(self, seconds: float | None) -> None:
        """Make one every `seconds`; None: as often as `SECONDS` and `COST` allow."""
        self._least, self._most = SECONDS if seconds is None else (seconds, seconds)
        self.last = time.perf_counter()
        self.cost = 0.0
        """Training seconds lost by the last checkpoint."""
        self.write_seconds = 0.0
        """Seconds from the last checkpoint's snapshot until it was on disk: a kill meanwhile leaves the one before."""

    def restart(self) -> float:
        """Count from now, and return this moment."""
        self.last = time.perf_counter()
        return self.last

    def due(self) -> bool:
        """Whether the time for a checkpoint has come: early enough to be on disk when the interval ends."""
        elapsed = time.perf_counter() - self.last
        ahead = min(self.write_seconds, self._least / 2)
        return elapsed + ahead >= self._least and (self.cost <= COST * elapsed or elapsed + ahead >= self._most)

    def affordable(self) -> bool:
        """Whether a checkpoint at the end of an epoch would cost no more than its share."""
        return self.cost <= COST * (time.perf_counter() - self.last)
