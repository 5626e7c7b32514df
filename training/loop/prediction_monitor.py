"""A prediction held against what is measured: after the first steps and after each epoch, and why they differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from training.config.plan import Plan
from training.loop.prediction import Prediction
from training.loop.train_state import EpochDone
from training.process.journal import Report
from training.system.interference import Machine, Snapshot

FIRST_STEPS: Final = 100
"""After so many steps of a process, at the end of that window, the first comparison is made."""
DEVIATION: Final = 0.10
"""Share of the prediction beyond which a cause is looked for and said."""
EXPLAINED: Final = 0.5
"""Share of a deviation (of its logarithm) that the machine's own speed must account for, to be its cause."""
GAUGING: Final = 0.2
"""Seconds for which the machine's own speed is measured then."""
STEADY: Final = 4
"""The quickest one in so many steps takes what the plan takes undisturbed."""
AGREEING: Final = 0.05
"""By how much these may differ from the prediction that they confirm."""
LEAST_STEPS: Final = 24
"""Of fewer, the quickest ones are luck."""
NOTICED: Final = 0.05
"""Seconds that a comparison must be off to be warned of: a tenth of a tiny epoch is a single hiccup."""

Cause = Literal["noisy", "calibration", "adapted"]
"""The machine was disturbed, then or now; it was not, so the calibration was wrong; it was not run as predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One comparison."""

    epoch: int
    """From 1."""
    steps: int
    """That were measured."""
    whole: bool
    """Whether they are a whole epoch, its validation included; else they are the first steps of a process."""
    predicted_s: float
    low_s: float
    high_s: float
    """Of all of them, with the interval; what a process takes longer to warm up is part of its first ones."""
    measured_s: float
    """Wall time of all of them, loading and warming up included."""
    predicted_batch_s: float
    measured_batch_s: float
    """The same divided by the number of steps."""
    deviation: float
    """measured / predicted - 1."""
    cause: Cause | None
    """None: it is within `DEVIATION`."""
    seen: str
    """What was seen, as a clause; empty without a cause."""

    @property
    def alarming(self) -> bool:
        """Whether somebody should be warned."""
        return self.cause in ("noisy", "calibration") and abs(self.measured_s - self.predicted_s) >= NOTICED

    def describe(self) -> str:
        """Return the comparison as one sentence."""
        what = f"epoch {self.epoch}" if self.whole else f"{self.steps} steps"
        return (
            f"{what} took {self.measured_s:.2f} s, but {self.predicted_s:.2f} s ({self.low_s:.2f} to "
            f"{self.high_s:.2f}) were predicted, a deviation of {self.deviation:+.0%}: {self.seen}"
        )


class Reality:
    """Compares one training with its prediction; records `prediction`, and a `warning` once for each cause.

    Without a prediction it does nothing. An epoch that another process began is not compared.
    """

    def __init__(
        self, prediction: Prediction | None, plan: Plan, report: Report, machine: Machine,
        gauge: Callable[[int, float], float] | None = None,
    ) -> None:  # fmt: skip
        """Hold `prediction`, made for `plan`, against a training that begins now; `gauge` is reference_workload's."""
        usable = prediction is not None and min(prediction.step_s, prediction.epoch_s) > 0
        self._prediction = prediction if usable else None
        self._planned = self._plan = plan
        self._report = report
        self._machine = machine
        self._gauge = gauge
        self._began = self._epoch_began = machine.look()
        self._steps: int | None = 0
        """Counted towards the first comparison, None after it."""
        self._seconds = 0.0
        self._step_seconds: list[float] = []
        """Of each step of the epoch."""
        self._whole = False
        self._cold = True
        self._adapted_ever = self._adapted_in_epoch = False
        self._warned: set[Cause] = set()

    def begin_epoch(self, first_step: int) -> None:
        """Hear that an epoch goes on from `first_step`: 0 at its beginning."""
        self._whole = first_step == 0
        self._step_seconds.clear()
        self._adapted_in_epoch = self._plan != self._planned

    def adapted(self, plan: Plan) -> None:
        """Hear that the training goes on under `plan`."""
        self._plan = plan
        self._adapted_ever = self._adapted_in_epoch = True

    def window(self, epoch: int, seconds: float, step_seconds: Sequence[float]) -> None:
        """Hear of the next steps of `epoch` (from 1), what each of them took, and all of them with what lay between."""
        if self._prediction is None:
            return
        self._step_seconds += step_seconds
        if self._steps is None:
            return
        self._steps += len(step_seconds)
        self._seconds += seconds
        if self._steps < FIRST_STEPS:
            return
        # The interval of an epoch is that of its steps.
        share = self._prediction.step_s * self._steps / self._prediction.epoch_s
        compared = _compared(
            self._prediction, epoch=epoch, steps=self._steps, whole=False, share=share, cold=True,
            measured_s=self._seconds,
        )  # fmt: skip
        self._steps = None
        self._record(compared, self._began, adapted=self._adapted_ever)

    def epoch(self, done: EpochDone, steps: int) -> None:
        """Hear of the end of an epoch of `steps` steps."""
        if self._prediction is not None and self._whole:
            compared = _compared(
                self._prediction, epoch=done.epoch, steps=steps, whole=True, share=1.0, cold=self._cold,
                measured_s=done.seconds,
            )  # fmt: skip
            self._record(compared, self._epoch_began, adapted=self._adapted_in_epoch)
        if self._prediction is not None:
            self._epoch_began = self._machine.look()
        self._cold = False

    def _record(self, compared: Compared, began: Snapshot, *, adapted: bool) -> None:
        if abs(compared.deviation) > DEVIATION:
            cause, seen = self._explained(compared, began, adapted=adapted)
            compared = replace(compared, cause=cause, seen=seen)
        self._report.write("prediction", asdict(compared))
        if compared.alarming and compared.cause is not None and compared.cause not in self._warned:
            self._warned.add(compared.cause)
            self._report.write("warning", {"message": compared.describe()})

    def _explained(self, compared: Compared, began: Snapshot, *, adapted: bool) -> tuple[Cause, str]:
        if adapted:
            return "adapted", "the plan was changed on the way, so that the prediction is for another one"
        slower = compared.deviation > 0
        noise = self._machine.look().since(began)
        if slower and noise.noisy:  # a disturbed machine makes nothing faster
            return "noisy", f"{noise.describe()}; the prediction is for an undisturbed machine"
        unseen = (slower and self._unsteady()) or self._of_another_speed(compared.deviation)
        if unseen:
            return "noisy", unseen
        if not slower:
            return "calibration", "calibration measured too slowly, as on a disturbed machine; let it measure again"
        return "calibration", f"{noise.describe()}, so the calibration was wrong; let it measure again"

    def _unsteady(self) -> str:
        """Say that steps of the epoch are as predicted at times, and slower at others; empty where they are not.

        The work of each is the same. A plan that is slower than predicted is so in every step.
        """
        if self._prediction is None or len(self._step_seconds) < LEAST_STEPS:
            return ""
        ordered = sorted(self._step_seconds)
        quick, slow = ordered[len(ordered) // STEADY - 1], ordered[-(len(ordered) // STEADY)]
        if quick > self._prediction.step_s * (1 + AGREEING):
            return ""
        return (
            f"one step in {STEADY} took {1000 * quick:.1f} ms or less, near the predicted "
            f"{1000 * self._prediction.step_s:.1f}, and one in {STEADY} {1000 * slow:.1f} or more, so that something "
            "outside slows it at times, which no counter of the kernel shows"
        )

    def _of_another_speed(self, deviation: float) -> str:
        """Say that the machine itself is slower or faster than at calibration; empty where it is not, or unknown."""
        then_s = self._prediction.gauge_s if self._prediction is not None else None
        if self._gauge is None or not then_s:
            return ""
        pace = self._gauge(self._plan.threads, GAUGING) / then_s
        if math.log(pace) / math.log1p(deviation) < EXPLAINED:
            return ""
        return (
            f"the same piece of work takes {pace:.2f} times as long as when it was calibrated, so that the machine "
            f"itself is {'slower' if deviation > 0 else 'faster'} now, which no counter of the kernel shows"
        )


def _compared(
    prediction: Prediction, *, epoch: int, steps: int, whole: bool, share: float, cold: bool, measured_s: float
) -> Compared:
    """Compare `measured_s` with `share` of a predicted epoch, of a process that is `cold` or warm."""
    warm_s = prediction.warm_s if cold else 0.0
    predicted_s = prediction.epoch_s * share + warm_s
    return Compared(
        epoch=epoch, steps=steps, whole=whole,
        predicted_s=predicted_s, low_s=prediction.low_s * share + warm_s, high_s=prediction.high_s * share + warm_s,
        measured_s=measured_s, predicted_batch_s=predicted_s / steps, measured_batch_s=measured_s / steps,
        deviation=measured_s / predicted_s - 1, cause=None, seen="",
    )  # fmt: skip
