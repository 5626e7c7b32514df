"""Prediction monitor: compares measured with predicted time, and finds the cause of a deviation."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Final

from preflight.container.counters import SystemCounters
from preflight.container.interference import CounterSample, Interference
from preflight.container.work_clock import per_period
from preflight.contract.plan import Plan
from preflight.files.journal import RecordWriter
from training.prediction import DEVIATION, Cause, Prediction, PredictionCheck, Stretch, compare
from training.step.train_state import EpochDone

FIRST_STEPS: Final = 100
"""Steps of a process after which, at the end of that window, the first comparison is made."""
EXPLAINED: Final = 0.5
"""Share of a deviation (of its logarithm) that the machine's own speed must account for, to be its cause."""
GAUGING: Final = 0.2
"""Seconds for which the machine's own speed is measured to explain a deviation."""
STEADY: Final = 4
"""The fastest 1/`STEADY` of the steps are taken for undisturbed."""
AGREEING: Final = 0.05
"""Share by which those steps may be slower than the prediction that they confirm."""
LEAST_STEPS: Final = 24
"""Least number of steps: of fewer, the quickest ones are luck."""
UNIT_PERIODS: Final = 5
"""Periods of a CPU quota whose steps count as one, where it holds the training back: in one of them most run at full
speed, and one waits. By so many, the moment of their beginning moves their mean by a tenth at most."""
LEAST_UNITS: Final = 8
"""Least number of such units: of fewer, the quickest one is luck."""


class PredictionMonitor:
    """Compares one training with its prediction; records `prediction`, and one `warning` at most.

    Without a prediction it does nothing. An epoch that another process began is not compared.
    """

    def __init__(
        self, prediction: Prediction | None, plan: Plan, report: RecordWriter, machine: SystemCounters,
        time_workload: Callable[[int, float], float] | None = None,
    ) -> None:  # fmt: skip
        """Compare `prediction`, made for `plan`, with a training that begins now."""
        usable = prediction is not None and min(prediction.step_s, prediction.epoch_s) > 0
        self._prediction = prediction if usable else None
        self._planned = self._plan = plan
        self._report = report
        self._machine = machine
        self._time_workload = time_workload
        self._began = self._epoch_began = machine.sample()
        self._steps: int | None = 0
        """Steps counted towards the first comparison, None after it."""
        self._seconds = 0.0
        self._step_seconds: list[float] = []
        """Seconds of each step of the epoch."""
        self._whole = False
        self._cold = True
        self._adapted_ever = self._adapted_in_epoch = False
        self._warned = False

    def begin_epoch(self, first_step: int) -> None:
        """Start or continue an epoch at `first_step`, from 0."""
        self._whole = first_step == 0
        self._step_seconds.clear()
        self._adapted_in_epoch = self._plan != self._planned

    def apply_plan(self, plan: Plan) -> None:
        """Note that training continues under `plan`."""
        self._plan = plan
        self._adapted_ever = self._adapted_in_epoch = True

    def predict_anew(self, prediction: Prediction | None, plan: Plan, machine: SystemCounters) -> None:
        """Compare with `prediction` from the next epoch on, for `plan`, as the container's limits have changed."""
        self._prediction, self._plan, self._planned = prediction, plan, plan
        self._machine = machine
        self._adapted_ever = self._adapted_in_epoch = True

    def observe_window(self, epoch: int, seconds: float, step_seconds: Sequence[float]) -> None:
        """Observe the next steps of `epoch` (from 1): `seconds` of all, `step_seconds` of each."""
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
        measured = Stretch(
            epoch=epoch, steps=self._steps, whole=False, share=share, cold=True, seconds=self._seconds
        )  # fmt: skip
        compared = compare(self._prediction, measured)
        self._steps = None
        self._record(compared, self._began, adapted=self._adapted_ever)

    def observe_epoch(self, done: EpochDone, steps: int, epoch_steps: int) -> None:
        """Observe the end of an epoch of `steps` steps; one that is predicted has `epoch_steps`."""
        if self._prediction is not None and self._whole:
            share = self._prediction.share(steps / epoch_steps)
            measured = Stretch(
                epoch=done.epoch, steps=steps, whole=True, share=share, cold=self._cold, seconds=done.seconds
            )  # fmt: skip
            compared = compare(self._prediction, measured)
            self._record(compared, self._epoch_began, adapted=self._adapted_in_epoch)
        if self._prediction is not None:
            self._epoch_began = self._machine.sample()
        self._cold = False

    def _record(self, compared: PredictionCheck, began: CounterSample, *, adapted: bool) -> None:
        if abs(compared.deviation) > DEVIATION:
            cause, seen = self._explained(compared, began, adapted=adapted)
            compared = replace(compared, cause=cause, seen=seen)
        self._report.write("prediction", asdict(compared))
        if compared.alarming and not self._warned:
            self._warned = True
            self._report.write("warning", {"message": compared.describe()})

    def _explained(self, compared: PredictionCheck, began: CounterSample, *, adapted: bool) -> tuple[Cause, str]:
        if adapted:
            return "adapted", "the plan was changed on the way, so that the prediction is for another one"
        slower = compared.deviation > 0
        noise = self._machine.sample().since(began)
        if slower and noise.noisy:  # a disturbed machine makes nothing faster
            return "noisy", f"{noise.describe()}; the prediction is for an undisturbed machine"
        if slower and noise.short_of_memory:
            return "noisy", (
                f"the kernel read {noise.reread:,.0f} pages of the program a second again from disk, as the memory is "
                "too short for them; give the container more memory"
            )
        unseen = (slower and self._unsteady(noise)) or self._of_another_speed(compared.deviation)
        if unseen:
            return "noisy", unseen
        if not slower:
            return "calibration", "the machine was busy during calibration; measure again with --force-calibration"
        return "calibration", f"{noise.describe()}, so the prediction was off; measure again with --force-calibration"

    def _unsteady(self, noise: Interference) -> str:
        """Return a clause where steps of the epoch are as predicted at times, and slower at others; else an empty one.

        The work of each is the same. A plan that is slower than predicted is so in every step, and under a quota that
        holds it back in the steps of any few periods.
        """
        steps: Sequence[float] = self._step_seconds
        if self._prediction is None or len(steps) < LEAST_STEPS:
            return ""
        if noise.held_back:
            unit_s = UNIT_PERIODS * noise.period_s
            if sum(steps) < LEAST_UNITS * unit_s:
                return ""
            steps = per_period(steps, unit_s)
        ordered = sorted(steps)
        quick, slow = ordered[len(ordered) // STEADY - 1], ordered[-(len(ordered) // STEADY)]
        if quick > self._prediction.step_s * (1 + AGREEING):
            return ""
        return (
            f"one step in {STEADY} took {1000 * quick:.1f} ms or less, near the predicted "
            f"{1000 * self._prediction.step_s:.1f}, and one in {STEADY} {1000 * slow:.1f} or more, so that something "
            "outside slows it at times, which no counter of the kernel shows"
        )

    def _of_another_speed(self, deviation: float) -> str:
        """Return a clause where the machine is slower or faster than at calibration; empty: it is not, or unknown."""
        then_s = self._prediction.gauge_s if self._prediction is not None else None
        if self._time_workload is None or not then_s:
            return ""
        pace = self._time_workload(self._plan.threads, GAUGING) / then_s
        if math.log(pace) / math.log1p(deviation) < EXPLAINED:
            return ""
        times, comparison = (pace, "slower") if pace > 1 else (1 / pace, "faster")
        return f"the machine is {times:.1f}x {comparison} than during calibration (reference workload)"
