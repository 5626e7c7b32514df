"""Progress of a training: each window is reported, compared with the prediction, and used to tune the plan."""

import time

from preflight.container.counters import SystemCounters
from preflight.container.resources import SHORT, MemoryUse, Share
from preflight.files.journal import RecordWriter
from preflight.tuner.micro_batches import AMPLE
from preflight.tuner.settings import set_malloc
from preflight.tuner.surroundings import Container
from training.loop.limit_watch import LimitWatch, ProcessorChange, SharedThreads
from training.loop.plan_tuner import PlanTuner
from training.loop.prediction_monitor import PredictionMonitor
from training.loop.window import Window
from training.prediction import Prediction
from training.step.train_state import EpochDone, TrainState
from training.step.train_step import TrainStep
from training.system.reference_workload import time_reference_workload


class ProgressObserver:
    """Records `progress` and shows each window to prediction monitor and plan tuner."""

    def __init__(
        self, step: TrainStep, state: TrainState, report: RecordWriter, prediction: Prediction | None = None,
        share: Share | None = None, shared: SharedThreads | None = None,
    ) -> None:  # fmt: skip
        self._step = step
        self.state = state
        self.report = report
        self._shares = share.of if share else 1
        counters = SystemCounters(shares=self._shares)
        self._monitor = PredictionMonitor(prediction, step.plan, report, counters, time_reference_workload)
        self._memory = MemoryUse(share=share)
        self._limits = LimitWatch(self._memory, shares=self._shares, shared=shared, threads=step.plan.threads)
        self._used: int | None = None
        self._frugal = False
        """Whether malloc has its defaults again, which give freed memory back."""
        self._first_step_at = 0.0
        """Time of the first step in seconds since the Unix epoch; 0 in the first window."""
        self._tuner = PlanTuner(step, report, prediction, Container(shares=self._shares))

    def begin_epoch(self) -> None:
        """Observe that an epoch begins or continues."""
        self._monitor.begin_epoch(self.state.step)
        self._tuner.resume()

    def end_step(self) -> None:
        """Observe that a step was made."""
        changed = self._tuner.end_step()
        if changed is not None:
            self._monitor.apply_plan(changed)

    def end_steps(self) -> None:
        """Observe that the steps of an epoch are made: a validation follows."""
        self._tuner.pause()

    def observe_window(self, window: Window) -> None:
        """Close `window`; report it when a report is due."""
        window.close()
        if (joined := self._limits.shared()) is not None:
            self._adapt(joined)
        if self._limits.due():
            self._observe_limits()
        self._first_step_at = self._first_step_at or time.time() - sum(window.step_seconds[1:])
        reporting, limit = window.report_due(), self._memory.limit
        if reporting or self._used is None or self._used >= AMPLE * limit:  # else reading the files can wait
            self._used = self._memory.bytes()
        if not self._frugal and self._used is not None and self._used > SHORT * limit:
            self._frugal = set_malloc(tuned=False)  # what it kept may be several times what a smaller batch would save
            self._used = self._memory.bytes()
        used = self._used
        if reporting:
            figures = window.report(self._step.pop_correct())
            held = self._memory.container_bytes()
            figures |= {"used_memory_mib": None if held is None else held >> 20, "first_step_at": self._first_step_at}
            self.report.write("progress", figures)
        self._monitor.observe_window(self.state.epoch + 1, window.seconds, window.step_seconds)
        share = None if used is None else used / limit
        changed = self._tuner.observe_window(len(window.step_seconds), window.seconds, share)
        if changed is not None:
            self._monitor.apply_plan(changed)

    def _observe_limits(self) -> None:
        """Follow limits of the container that were changed meanwhile, as by `docker update`."""
        cut, change = self._limits.memory(), self._limits.processors()
        if cut is not None:
            self._used = None  # so that it is read for this window, after which the micro-batch is decided
            self.report.write("warning", {"message": f"{cut.describe()}; the micro-batch follows"})
        if change is not None:
            self._adapt(change)

    def _adapt(self, change: ProcessorChange) -> None:
        """Take or give up threads, and predict again."""
        prediction = self._tuner.adapt_to(change, Container(shares=self._shares))
        self._monitor.predict_anew(prediction, self._step.plan, SystemCounters(shares=self._shares))

    def observe_epoch(self, done: EpochDone) -> None:
        """Compare a whole epoch with its prediction."""
        self._monitor.observe_epoch(done, self.state.steps_of(done.epoch - 1), self.state.steps)
