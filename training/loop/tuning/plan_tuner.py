"""Plan tuner: changes threads and micro-batch of a running training, from windows of steps."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from training.config.plan import Plan
from training.loop.prediction import Prediction
from training.loop.tuning.change import Change
from training.loop.tuning.micro_batches import MicroBatchTuner
from training.loop.tuning.threads import ThreadTuner, Throughput
from training.process.journal import RecordWriter
from training.system.interference import CounterSample
from training.system.system_counters import SystemCounters

if TYPE_CHECKING:
    from training.loop.train_step import TrainStep

LEAST_SECONDS: Final = 0.4
"""Shortest window; shorter ones, at the ends of epochs, are added to the next."""


class PlanTuner:
    """Changes the plan of a training that runs, and records `adapted`; a deterministic one is never changed."""

    def __init__(
        self, step: "TrainStep", report: RecordWriter, prediction: Prediction | None, machine: SystemCounters
    ) -> None:
        """Tune the plan of `step`; without a prediction its threads stay."""
        spec, plan = step.spec, step.plan
        self._step = step
        self._report = report
        self._machine = machine
        self._slow_since: CounterSample | None = None
        """Counters at the end of the first slow window."""
        self._steps, self._seconds = 0, 0.0
        self._threads: ThreadTuner | None = None
        self._micro: MicroBatchTuner | None = None
        if spec.deterministic:
            return
        self._micro = MicroBatchTuner(plan.micro_batch, spec.batch_size, batch_statistics=step.batch_statistics)
        # Compiled code keeps the number of threads that it was compiled for.
        if prediction is not None and prediction.step_s > 0 and not plan.compile:
            self._threads = ThreadTuner(plan.threads, spec.batch_size, prediction.step_s)

    def observe_window(self, steps: int, seconds: float, share: float | None) -> Plan | None:
        """Observe `steps` steps in `seconds` with `share` of the memory limit in use; return a new plan, if any."""
        self._steps += steps
        self._seconds += seconds
        if self._micro is None or self._seconds < LEAST_SECONDS:
            return None
        pace = Throughput(steps=self._steps, seconds=self._seconds)
        self._steps, self._seconds = 0, 0.0
        smaller = self._micro.observe(pace.steps, share) if share is not None else None
        if smaller is not None:
            if self._threads is not None:
                self._threads.settle()
            return self._apply(smaller, replace(self._step.plan, micro_batch=smaller.after))
        other = self._threads.observe(pace, self._seen) if self._threads is not None else None
        self._watch(pace)
        return self._apply(other, replace(self._step.plan, threads=other.after)) if other is not None else None

    def _watch(self, pace: Throughput) -> None:
        """Sample the counters once training has become slow: a sample reads a dozen files."""
        if self._threads is None or not self._threads.slow(pace):
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = self._machine.sample()

    def _seen(self) -> str:
        before = self._slow_since
        return self._machine.sample().since(before).describe() if before else "the machine was not looked at"

    def _apply(self, change: Change, plan: Plan) -> Plan:
        self._report.write("adapted", asdict(change))
        self._step.apply_plan(plan)
        return plan
