"""Plan tuner: changes threads and micro-batch of a running training, from windows of steps."""

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from preflight.container.counters import SystemCounters
from preflight.container.interference import CounterSample
from preflight.contract.plan import Plan
from preflight.files.journal import RecordWriter
from training.loop.tuning.change import Change
from training.loop.tuning.limit_watch import ProcessorChange
from training.loop.tuning.micro_batches import MicroBatchTuner
from training.loop.tuning.threads import ThreadTuner, Throughput
from training.prediction import DEVIATION, Prediction

if TYPE_CHECKING:
    from training.step.train_step import TrainStep

LOOK_SECONDS: Final = 2.0
"""Between two looks at the counters of a training that is as fast as it should be; each takes half a millisecond."""
WHOLE_SECONDS: Final = 100.0
"""From which on a duration is told without decimals."""
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
        self._prediction = prediction
        self._machine = machine
        self._slow_since: CounterSample | None = None
        """Counters at the end of the first slow window."""
        self._before = machine.sample()
        """Counters when they were sampled last."""
        self._free: int | None = None
        """Processors that others left free before that; None: not known."""
        self._steps, self._seconds = 0, 0.0
        self._threads: ThreadTuner | None = None
        self._micro: MicroBatchTuner | None = None
        if spec.deterministic:
            return
        self._micro = MicroBatchTuner(plan.micro_batch, spec.batch_size, batch_statistics=step.batch_statistics)
        # Compiled code keeps the number of threads that it was compiled for.
        if prediction is not None and prediction.step_s > 0 and not plan.compile:
            most = prediction.threads_alone or plan.threads
            # Not by its own prediction alone, which is as low where a neighbour slowed the calibration down.
            step_s = min(prediction.step_s, prediction.raced_step_s or prediction.step_s)
            self._threads = ThreadTuner(plan.threads, spec.batch_size, step_s, most)

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
        if self._threads is None:
            return None
        self._look(self._threads, pace)
        other = self._threads.observe(pace, self._seen, self._free)
        return self._apply(other, replace(self._step.plan, threads=other.after)) if other is not None else None

    def adapt_to(self, change: ProcessorChange, machine: SystemCounters) -> Prediction | None:
        """Go on under a changed CPU limit, with the counters that began there; return the prediction under it.

        Threads follow the limit where they may change; the prediction follows the processors that they keep busy.
        """
        plan, self._machine, self._slow_since, self._before = self._step.plan, machine, None, machine.sample()
        before = plan.threads
        self._steps, self._seconds = 0, 0.0
        if self._threads is not None:
            factor, threads = self._threads.limit(change), self._threads.now
        else:
            threads = before if change.shared is None else max(1, int(change.after))
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
        self._apply(said, replace(plan, threads=threads))
        return told

    def _look(self, threads: ThreadTuner, pace: Throughput) -> None:
        """Sample the counters after each window that may change the threads, else now and then: it reads many files."""
        if time.perf_counter() - self._before.at < LOOK_SECONDS and not threads.watches(pace):
            return
        before, self._before = self._before, self._machine.sample()
        self._free = self._before.since(before).free
        if not threads.slow(pace):
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = before

    def _seen(self) -> str:
        before = self._slow_since
        return self._machine.sample().since(before).describe() if before else "the machine was not looked at"

    def _apply(self, change: Change, plan: Plan) -> Plan:
        self._report.write("adapted", asdict(change))
        self._step.apply_plan(plan)
        return plan
