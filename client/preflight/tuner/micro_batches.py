"""Micro-batch tuning: smaller while memory is short; the effective batch stays."""

from typing import Final

from ..container.resources import SHORT
from .settings import Change

AMPLE: Final = 0.50
"""Share of the memory limit below which the micro-batch is doubled again, up to the plan's."""
QUIET_STEPS: Final = 10
"""Steps below `AMPLE` before it is doubled; twice as many each time that it had to be halved again."""
HELPED: Final = 0.02
"""Least share of the limit by which halving lowers the memory in use; else the batch does not take it."""


class MicroBatchTuner:
    """Decides on the micro-batch from the share of the memory limit in use."""

    def __init__(self, planned: int, batch_size: int, *, batch_statistics: bool) -> None:
        """Begin with `planned` samples; `batch_statistics`: the model's statistics depend on their number."""
        self._planned = self._now = planned
        self._batch_size = batch_size
        self._batch_statistics = batch_statistics
        self._quiet = 0
        self._enough = QUIET_STEPS
        self._grown = False
        self._halved_at: float | None = None
        """Share at which the micro-batch was halved last, while memory is still short."""

    def observe(self, steps: int, share: float) -> Change | None:
        """Observe that `share` of the memory limit is in use after `steps` more steps; return the change to make."""
        self._quiet = self._quiet + steps if share < AMPLE else 0
        if share <= SHORT:
            self._halved_at = None
            return self._larger(share) if self._quiet >= self._enough else None
        samples = min(self._now, self._batch_size)
        if samples == 1 or (self._halved_at is not None and abs(share - self._halved_at) < HELPED):
            return None
        self._halved_at = share
        if self._grown:
            self._grown, self._enough = False, 2 * self._enough
        fate = (
            f"; its batch statistics are those of {samples // 2} samples from now on" if self._batch_statistics else ""
        )
        return self._changed(samples // 2, f"{share:.0%} of the memory limit are in use, more than {SHORT:.0%}{fate}")

    def _larger(self, share: float) -> Change | None:
        # Memory does not forbid the present one, and another would mean other batch statistics.
        if self._batch_statistics or self._now == self._planned:
            return None
        self._grown = True
        reason = f"{share:.0%} of the memory limit are in use, less than {AMPLE:.0%} for {self._quiet} steps"
        return self._changed(min(2 * self._now, self._planned), reason)

    def _changed(self, samples: int, reason: str) -> Change:
        change = Change(field="micro_batch", before=self._now, after=samples, reason=reason)
        self._now, self._quiet = samples, 0
        return change
