"""Predicted duration of a training, its comparison with the measured one, and speed by threads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass as plain_dataclass
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Final, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from preflight.contract.spec import STRICT
from preflight.numbers import duration, plural, predicted

DEVIATION: Final = 0.10
"""Share of the prediction beyond which the cause of a deviation is looked for."""
NOTICED: Final = 0.05
"""Least delay in seconds that is worth a warning: a tenth of a tiny epoch is a single hiccup."""

Speeds = tuple[tuple[int, float], ...]
"""Threads and steps a second, in pairs, the fewest threads first; empty where nothing was measured."""

UNMEASURED: Final = 0.7
"""Exponent of the speed by threads while none is known: twice the threads are 1.62 times as fast."""

Seconds = Annotated[float, Field(ge=0)]
Cause = Literal["noisy", "calibration", "adapted"]
"""The machine was disturbed, then or now; the calibration was wrong; the plan was changed on the way."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Prediction:
    """Wall seconds of an epoch under a plan."""

    epoch_s: Seconds
    """Seconds of an epoch, its validation included, once warm."""
    low_s: Seconds
    high_s: Seconds
    """95 % interval of `epoch_s`, from the spread of the measured steps and the machine's unsteadiness over days."""
    step_s: Seconds
    """Seconds of one step of the effective batch, its fetching included, once warm."""
    validation_s: Seconds = 0.0
    """Seconds of `epoch_s` that validation takes."""
    warm_s: Seconds = 0.0
    """Extra seconds of the first steps of a process, once."""
    gauge_s: Seconds | None = None
    """Seconds of training/system/reference_workload.py on the plan's threads meanwhile; None: not timed."""
    threads_alone: Annotated[int, Field(ge=1)] | None = None
    """Threads that are worth a trial once the neighbour has left that the calibration met; None: it met none."""
    raced_step_s: Seconds | None = None
    """Seconds of a step under the fastest plan of fewer threads that was raced; None: none was faster."""

    speeds: Speeds = ()
    """Steps a second by threads, as they were measured; empty where they were not."""

    def scaled(self, factor: float, doubt: float = 0.0) -> "Prediction":
        """Return the prediction where everything takes `factor` times as long, its interval wider by `doubt`."""
        return replace(
            self, epoch_s=factor * self.epoch_s, step_s=factor * self.step_s, validation_s=factor * self.validation_s,
            low_s=factor * self.low_s * (1 - doubt), high_s=factor * self.high_s * (1 + doubt),
            warm_s=factor * self.warm_s,
            raced_step_s=None if self.raced_step_s is None else factor * self.raced_step_s,
        )  # fmt: skip

    def sharing(self, threads: int) -> tuple[int, Speeds]:
        """Return the threads of a plan with `threads` while it is alone, and its speeds if known that far."""
        alone = max(threads, self.threads_alone or 1)
        return alone, self.speeds if self.speeds and self.speeds[-1][0] >= alone else ()

    def over(self, epochs: int, last: float = 1.0) -> float:
        """Return the mean seconds of an epoch in a training of `epochs`, warming up included.

        The last one has the share `last` of the steps.
        """
        return ((epochs - 1 + self.share(last)) * self.epoch_s + self.warm_s) / epochs

    def share(self, steps: float) -> float:
        """Return the share of `epoch_s` that an epoch with a share of the steps takes, its validation included."""
        return 1 - (1 - steps) * (1 - self.validation_s / self.epoch_s) if self.epoch_s else 1.0

    def of_steps(self, steps: int) -> "Prediction":
        """Return the prediction for epochs of `steps` steps."""
        epoch_s = steps * self.step_s + self.validation_s
        factor = epoch_s / self.epoch_s if self.epoch_s else 1.0
        return replace(self, epoch_s=epoch_s, low_s=factor * self.low_s, high_s=factor * self.high_s)


@plain_dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCheck:
    """Comparison of a prediction with measured steps."""

    epoch: int
    """Number of the epoch, from 1."""
    steps: int
    """Number of steps that were measured."""
    whole: bool
    """Whether they are a whole epoch, its validation included; else they are the first steps of a process."""
    predicted_s: float
    low_s: float
    high_s: float
    """Predicted seconds of all of them, with the interval; the first ones of a process include its warming up."""
    measured_s: float
    """Wall time of all of them, loading and warming up included."""
    predicted_batch_s: float
    measured_batch_s: float
    """The same divided by the number of steps."""
    deviation: float
    """Deviation: measured / predicted - 1."""
    cause: Cause | None
    """Cause of the deviation; None: it is within `DEVIATION`."""
    seen: str
    """Clause that says what showed the cause; empty without a cause."""

    @property
    def alarming(self) -> bool:
        """Whether to warn: of a training that is slower than predicted, by more than a hiccup."""
        return self.cause in ("noisy", "calibration") and self.measured_s - self.predicted_s >= NOTICED

    def describe(self) -> str:
        """Return the comparison as one sentence."""
        what = f"epoch {self.epoch}" if self.whole else plural(self.steps, "step")
        foreseen = predicted(self.predicted_s, self.low_s, self.high_s)
        took = f"{what} took {duration(self.measured_s)}, {self.deviation:+.0%} from the prediction of {foreseen}"
        return f"{took}: {self.seen}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps of one epoch that were measured together."""

    epoch: int
    steps: int
    whole: bool
    """Whether they are the whole epoch."""
    share: float
    """Share of the predicted epoch that they are."""
    cold: bool
    """Whether the process had just begun."""
    seconds: float


def compare(prediction: Prediction, measured: Stretch) -> PredictionCheck:
    """Compare the seconds of a stretch with its share of the predicted epoch."""
    share, steps, measured_s = measured.share, measured.steps, measured.seconds
    warm_s = prediction.warm_s if measured.cold else 0.0
    predicted_s = prediction.epoch_s * share + warm_s
    return PredictionCheck(
        epoch=measured.epoch, steps=steps, whole=measured.whole,
        predicted_s=predicted_s, low_s=prediction.low_s * share + warm_s, high_s=prediction.high_s * share + warm_s,
        measured_s=measured_s, predicted_batch_s=predicted_s / steps, measured_batch_s=measured_s / steps,
        deviation=measured_s / predicted_s - 1, cause=None, seen="",
    )  # fmt: skip


def speed(speeds: Speeds, threads: float) -> float:
    """Return the steps a second on so many threads, in an arbitrary unit where nothing was measured.

    Between two measurements the logarithm of the speed is linear in that of the threads. Below the fewest it falls
    with the threads, above the most it stays: both are the least that can be expected.
    """
    if not speeds:
        return math.pow(threads, UNMEASURED)
    (fewest, slowest), (most, fastest) = speeds[0], speeds[-1]
    if threads <= fewest:
        return slowest * threads / fewest
    if threads >= most:
        return fastest
    for (fewer, slow), (more, fast) in pairwise(speeds):
        if threads <= more:
            part = math.log(threads / fewer) / math.log(more / fewer)
            return slow * math.pow(fast / slow, part)
    raise AssertionError(f"{speeds} is not in order")


def slowdown(speeds: Speeds, before: float, after: float) -> float:
    """Return how many times as long a step takes on `after` threads as on `before`."""
    return speed(speeds, before) / speed(speeds, after)


def ordered(measured: Sequence[tuple[int, float]]) -> Speeds:
    """Return measurements as speeds: more threads are never slower, as fewer of them can be used."""
    found: list[tuple[int, float]] = []
    for threads, steps in sorted(measured):
        found.append((threads, max(steps, found[-1][1] if found else 0.0)))
    return tuple(found)
