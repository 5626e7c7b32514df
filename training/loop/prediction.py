"""What calibration says a training will take; training holds it against what it measures."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from training.config.spec import STRICT

Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Prediction:
    """Wall seconds of an epoch under a plan."""

    epoch_s: Seconds
    """Of an epoch, its validation included, once warm."""
    low_s: Seconds
    high_s: Seconds
    """95 % interval of `epoch_s`, from the spread of the measured steps."""
    step_s: Seconds
    """Of one step of the effective batch, its fetching included, once warm."""
    validation_s: Seconds = 0.0
    """Share of `epoch_s` that validation takes."""
    warm_s: Seconds = 0.0
    """What the first steps of a process take beyond that, once."""
    gauge_s: Seconds | None = None
    """What the fixed piece of work of training/system/reference_workload.py took on the plan's threads meanwhile;
    None: not timed."""

    def over(self, epochs: int) -> float:
        """Return the mean seconds of an epoch in a training of `epochs`, warming up included."""
        return self.epoch_s + self.warm_s / epochs
