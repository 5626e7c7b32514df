"""Plan tuner: changes threads and micro-batch of a running training.

Threads are raced by the tuner of `preflight run`, on the training's own steps; here it begins with the figures of a
calibration, and races once the kernel's counters, the limits or the steps show that the container has changed.
"""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from preflight.contract.plan import Plan
from preflight.files.journal import RecordWriter
from preflight.numbers import rough_interval
from preflight.statistics import Comparison
from preflight.tuner.laps import LapClock
from preflight.tuner.micro_batches import MicroBatchTuner
from preflight.tuner.race import Steps
from preflight.tuner.settings import Change, Settings, describe_threads
from preflight.tuner.surroundings import ContainerView
from preflight.tuner.tuning import Known, Limits, Tuning
from training.loop.limit_watch import ProcessorChange
from training.prediction import DEVIATION, Prediction

if TYPE_CHECKING:
    from training.step.train_step import TrainStep

WHOLE_SECONDS: Final = 100.0
"""Seconds from which on a duration is shown without decimals."""
LEAST_SECONDS: Final = 0.4
"""Shortest window; shorter ones, at the ends of epochs, are added to the next."""


class PlanTuner:
    """Changes the plan of a running training, and records `adapted`; a deterministic one is never changed."""

    def __init__(
        self, step: "TrainStep", report: RecordWriter, prediction: Prediction | None, around: ContainerView
    ) -> None:
        """Tune the plan of `step`; without a prediction its threads stay."""
        spec, plan = step.spec, step.plan
        self._step = step
        self._report = report
        self._prediction = prediction
        self._clock = LapClock()
        self._tuning: Tuning | None = None
        self._run: Steps[None] | None = None
        self._why, self._before = "", plan.threads
        """Reason of the race that runs, and the threads before it."""
        self._trials: list[str] = []
        """Trials of that race, as clauses."""
        self._steps, self._seconds = 0, 0.0
        self._around = around
        self._micro: MicroBatchTuner | None = None
        if spec.deterministic:
            return
        self._micro = MicroBatchTuner(plan.micro_batch, spec.batch_size, batch_statistics=step.batch_statistics)
        # Compiled code keeps the number of threads that it was compiled for.
        if prediction is not None and prediction.step_s > 0 and not plan.compile:
            # Not by its own prediction alone, which is too slow where a neighbour slowed the calibration down.
            step_s = min(prediction.step_s, prediction.raced_step_s or prediction.step_s)
            met = prediction.threads_alone or plan.threads
            self._begin(plan.threads, Known(step_s=step_s, others=float(max(0, met - plan.threads))))
            self._clock.pause()

    @property
    def threads(self) -> int:
        """The threads that are decided on; while a race runs, those before it."""
        return self._step.plan.threads if self._tuning is None else self._tuning.best.threads

    def pause(self) -> None:
        """Stop the clock until `resume`, for a validation."""
        self._clock.pause()

    def resume(self) -> None:
        """Resume timing steps."""
        self._clock.resume()

    def end_step(self) -> Plan | None:
        """Count a step; return a new plan, if any."""
        if self._run is None:
            return None
        lap = self._clock.tick()
        if lap is None:
            return None
        return self._follow(self._run.send(lap))

    def observe_window(self, steps: int, seconds: float, share: float | None) -> Plan | None:
        """Observe `steps` steps in `seconds` with `share` of the memory limit in use; return a new plan, if any."""
        self._steps += steps
        self._seconds += seconds
        if self._micro is None or share is None or self._seconds < LEAST_SECONDS:
            return None
        counted, self._steps, self._seconds = self._steps, 0, 0.0
        smaller = self._micro.observe(counted, share)
        if smaller is None:
            return None
        threads = self.threads
        self._record(smaller)
        plan = self._apply(replace(self._step.plan, threads=threads, micro_batch=smaller.after))
        if self._tuning is not None:  # earlier measurements are of other steps
            self._begin(threads, Known(step_s=None, others=self._tuning.seen.others))
        return plan

    def adapt_to(self, change: ProcessorChange, around: ContainerView) -> Prediction | None:
        """Continue under a changed CPU limit, with the counters that began there; return the prediction under it.

        Threads follow the limit where they may change; the prediction follows the processors that they keep busy.
        """
        self._around, before = around, self.threads
        shared = change.shared
        threads = before if self._tuning is None and shared is None else change.fitting(before)
        factor = change.slowdown(before, threads)
        told = self._prediction = None if self._prediction is None else self._prediction.scaled(factor, DEVIATION)
        figures = (None, None, None) if told is None else (told.epoch_s, told.low_s, told.high_s)
        new = ""
        if told is not None:
            epoch_s = f"{told.epoch_s:,.0f}" if told.epoch_s >= WHOLE_SECONDS else f"{told.epoch_s:.3g}"
            new = f"; an epoch should take {epoch_s} s from now on"
        said = Change(
            field="threads", before=before, after=threads, reason=f"{change.describe()}{new}",
            predicted_epoch_s=figures[0], predicted_low_s=figures[1], predicted_high_s=figures[2],
        )  # fmt: skip
        self._record(said)
        self._apply(replace(self._step.plan, threads=threads))
        if self._tuning is not None and told is not None:
            others = self._tuning.seen.others if shared is None else float(shared.threads - threads)
            limit = change.before if shared is None else None
            self._begin(threads, Known(step_s=told.step_s, others=others, limit=limit))
        return told

    def _begin(self, threads: int, known: Known) -> None:
        """Begin to tune the threads, from the `known` figures of the steps."""
        limits = Limits(malloc=False, must_prove=True)  # malloc is tuned in each process of a training
        self._tuning = Tuning(Settings(threads), self._around, self._hear, limits)
        self._run = self._tuning.resume(known)
        next(self._run)
        self._clock.begin()

    def _follow(self, wanted: Settings) -> Plan | None:
        if wanted.threads == self._step.plan.threads:
            return None
        return self._apply(replace(self._step.plan, threads=wanted.threads))

    def _hear(self, what: str, **fields: object) -> None:
        """Receive the tuning's findings; write one record for each race."""
        settings, ratio = fields.get("settings"), fields.get("ratio")
        if what == "race":
            self._why, self._before, self._trials = str(fields["why"]), self.threads, []
        elif what == "trial" and isinstance(settings, Settings) and isinstance(ratio, Comparison):
            span = rough_interval(ratio.low, ratio.high)
            self._trials.append(f"{describe_threads(settings.threads)} did {ratio.ratio:.2f}x ({span}) the steps")
        elif what == "winner" and isinstance(settings, Settings) and self._trials:
            kept = "staying with" if settings.threads != self._before else "going back to"
            reason = "; ".join([self._why, *self._trials, f"{kept} {describe_threads(settings.threads)}"])
            self._record(Change(field="threads", before=self._before, after=settings.threads, reason=reason))
            self._trials = []

    def _record(self, change: Change) -> None:
        self._report.write("adapted", asdict(change))

    def _apply(self, plan: Plan) -> Plan:
        self._step.apply_plan(plan)
        return plan
