"""One change of a running plan."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One setting of the plan that changes, or that stays changed after a trial."""

    field: Literal["threads", "micro_batch"]
    before: int
    after: int
    reason: str
    predicted_epoch_s: float | None = None
    predicted_low_s: float | None = None
    predicted_high_s: float | None = None
    """Seconds of an epoch from now on, with the 95 % interval; None: it was not predicted anew."""
