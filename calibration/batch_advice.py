"""Batch advice: what 2, 4 and 8 times the effective batch would bring under the chosen plan, measured.

The aim is throughput, not a full memory: the smallest batch that does not lose any is advised, where one is proven
faster than the job's own. It is never applied, as another batch is another training.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.measure.protocol import Measure, Measured
from calibration.memory.model import SAFE, Memory, MemoryModel
from calibration.races.budget import training_seconds, warm_up_steps
from calibration.races.evaluation import GAIN, LEVEL
from calibration.races.run import SearchRun
from calibration.result import BatchAdvice, BatchTrial
from calibration.space import COMPILE_SECONDS
from preflight.contract.plan import Plan
from preflight.contract.verdicts import BatchOutcome
from preflight.numbers import MIB
from preflight.statistics import Comparison, compare
from training.prediction import Prediction

FACTORS: Final = (2, 4, 8)
"""Multiples of the job's effective batch that are considered."""
TRAINING_SHARE: Final = 0.01
"""Share of the predicted training that the measurement may take where it was not asked for."""
CEILING_SHARE: Final = 0.10
"""Share of the calibration's longest time, likewise."""
ASKED_SHARE: Final = 0.25
"""Share of the calibration's longest time where it was asked for."""
MIN_SECONDS: Final = 3.0
"""Least seconds to tell one batch from another; with less nothing is measured."""
PAIRS: Final = 5
"""Turns of both batches: two disturbed ones do not decide their median."""
BLOCK_SECONDS: Final = 0.2
"""Least seconds of one turn: two periods of a CPU quota."""
OVERDUE: Final = 2.0
"""Multiple of the allowed seconds after which a measurement is taken for hung."""
COPIES: Final = 2
"""Copies of a whole batch in memory next to its micro-batches: gathered, and normalised."""


@dataclass(slots=True, kw_only=True)
class _Advisor:
    """Measurement of larger batches in a separate process."""

    run: SearchRun
    plan: Plan
    memory: Memory
    prediction: Prediction
    deadline: float
    own_peak: int = 0
    own_blocks: list[float] = field(default_factory=list)
    """Seconds of a step of the job's own batch, block by block."""
    peaks: dict[int, int] = field(default_factory=dict)
    """Peak bytes by micro-batch."""
    disturbed: bool = False

    def known(self) -> BatchTrial:
        """Return the known figures of the job's own batch, without measuring it for this."""
        self.own_peak = self.run.evidence[self.plan].peak_bytes
        return BatchTrial(
            batch_size=self.run.task.batch_size, micro_batch=self.plan.micro_batch, outcome="own",
            samples_per_s=self.run.task.batch_size / self.prediction.step_s, epoch_s=self.prediction.epoch_s,
            peak_bytes=self.own_peak,
        )  # fmt: skip

    def own(self) -> BatchTrial:
        """Measure the job's own batch alone, in a new process: its memory is that of a training."""
        trial = self.known()
        self.own_peak = 0
        try:
            self.run.backend.restart(self.plan)
            for _ in range(PAIRS):
                self.own_blocks.append(self._block(self.plan, self.run.task.batch_size))
        except (WorkerLost, PlanFailed) as error:
            return replace(trial, outcome="failed", note=str(error))
        return replace(trial, peak_bytes=self.own_peak)

    def larger(self, factor: int) -> BatchTrial:
        """Consider a batch of `factor` times the samples: predict its memory, then measure it in turns with the own."""
        batch = factor * self.run.task.batch_size
        plan = replace(self.plan, micro_batch=self._micro_batch(factor))
        trial = BatchTrial(
            batch_size=batch, micro_batch=plan.micro_batch, outcome="refused",
            predicted_bytes=self._predict(batch, plan.micro_batch),
        )  # fmt: skip
        predicted, budget = trial.predicted_bytes or 0, self.run.task.memory_bytes
        if predicted > SAFE * budget:
            note = f"predicted to take {predicted // MIB:,} MiB, above {SAFE:.0%} of {budget // MIB:,}"
            return replace(trial, note=note)
        if self.run.records.crashed_before(plan):
            return replace(trial, outcome="failed", note="an earlier calibration crashed under it")
        if self._now() + self._seconds(factor) > self.deadline:
            note = (
                f"it is predicted to fit ({predicted // MIB:,} of {budget // MIB:,} MiB), but too little time is left "
                f"to measure it, about {self._seconds(factor):.1f} s; `preflight calibrate` does"
            )
            return replace(trial, outcome="skipped", note=note)
        return self._measure(trial, plan, factor)

    def _measure(self, trial: BatchTrial, plan: Plan, factor: int) -> BatchTrial:
        backend, records, budget = self.run.backend, self.run.records, self.run.task.memory_bytes
        records.attempt(plan)
        try:
            backend.isolate(plan)
            peak = self._steps(plan, trial.batch_size, 1).peak_bytes
            if peak > budget:
                note = f"took {peak // MIB:,} MiB of {budget // MIB:,}"
                return replace(trial, outcome="over", peak_bytes=peak, note=note)
            self.peaks[plan.micro_batch] = max(peak, self.peaks.get(plan.micro_batch, 0))
            comparison = self._compare(plan, trial.batch_size, factor, peak)
        except WorkerLost as error:
            outcome: BatchOutcome = "killed" if error.memory else "failed"
            return replace(trial, outcome=outcome, note=str(error))
        except PlanFailed as error:
            return replace(trial, outcome="failed", note=str(error))
        finally:
            records.mark_ok(plan)
        step_s = factor * self.prediction.step_s / comparison.ratio
        steps = max(1, self.run.task.steps_per_epoch // factor)
        return replace(
            trial, outcome="measured", peak_bytes=peak, ratio=comparison.ratio, low=comparison.low,
            high=comparison.high, samples_per_s=trial.batch_size / step_s,
            epoch_s=steps * step_s + self.prediction.validation_s,
        )  # fmt: skip

    def _compare(self, plan: Plan, batch: int, factor: int, peak: int) -> Comparison:
        """Return samples per second against the own batch, in turns where both fit into memory."""
        if peak + self.own_peak > self.run.task.memory_bytes or self.plan.loader_workers:
            blocks = [self._block(plan, batch) for _ in range(PAIRS)]
            return compare([((factor * own,), (block,)) for own, block in zip(self.own_blocks, blocks, strict=True)])
        pairs = []
        for turn in range(PAIRS):
            mine = None if turn % 2 else self._block(self.plan, self.run.task.batch_size)
            block = self._block(plan, batch)
            mine = self._block(self.plan, self.run.task.batch_size) if mine is None else mine
            pairs.append(((factor * mine,), (block,)))
        return compare(pairs)

    def _block(self, plan: Plan, batch: int) -> float:
        """Return the mean seconds of a step in a block: under a quota single steps are faster or slower than that."""
        step_s = self.prediction.step_s * batch / self.run.task.batch_size
        measured = self._steps(plan, batch, max(1, math.ceil(BLOCK_SECONDS / step_s)))
        if plan == self.plan and not self.peaks:
            self.own_peak = max(self.own_peak, measured.peak_bytes)
        self.disturbed |= bool(measured.disturbed)
        return statistics.fmean(measured.seconds)

    def _steps(self, plan: Plan, batch: int, steps: int) -> Measured:
        step_s = self.prediction.step_s * batch / self.run.task.batch_size
        warm_up = warm_up_steps(self.run, step_s)
        return self.run.backend.measure(Measure(plan=plan, steps=steps, warm_up=warm_up, samples=batch))

    def _micro_batch(self, factor: int) -> int:
        """Return the chosen micro-batch grown like the batch, or less often doubled where that would not be safe."""
        batch, safe = factor * self.run.task.batch_size, SAFE * self.run.task.memory_bytes
        sizes = [min(batch, times * self.plan.micro_batch) for times in (*reversed(FACTORS), 1) if times <= factor]
        return next((size for size in sizes if self._predict(batch, size) <= safe), sizes[-1])

    def _predict(self, batch: int, micro_batch: int) -> int:
        """Return the predicted bytes: by the line of the measurements here, at first with the slope of the probes."""
        largest = max(self.peaks, default=self.plan.micro_batch)
        peaks = {self.plan.micro_batch: self.own_peak, **self.peaks}
        model = MemoryModel(batch_size=batch, budget_bytes=self.run.task.memory_bytes, peaks=peaks)
        slope = model.line()[1] if len(peaks) > 1 else self.memory.fit.sample_bytes
        more = COPIES * (batch - self.run.task.batch_size) * self.run.task.sample_bytes
        return round(peaks[largest] + max(0, micro_batch - largest) * slope + more)

    def _seconds(self, factor: int) -> float:
        """Return about how many seconds it takes to measure a batch."""
        own_s = self.prediction.step_s
        step_s, compiling_s = factor * own_s, 2 * COMPILE_SECONDS * self.plan.compile
        warm_s = (warm_up_steps(self.run, step_s) + 1) * step_s + warm_up_steps(self.run, own_s) * own_s
        return compiling_s + warm_s + PAIRS * (max(BLOCK_SECONDS, own_s) + max(BLOCK_SECONDS, step_s))

    def _now(self) -> float:
        return _now(self.run)


def advise_batch(run: SearchRun, plan: Plan, memory: Memory, prediction: Prediction) -> BatchAdvice | None:
    """Measure larger effective batches under the plan that is kept; None where no advice is wanted.

    Where the training is too short for that, the advice says what the memory holds, which costs nothing. A failure
    here costs nothing but the advice.
    """
    allowed_s = allowed_seconds(run, prediction)
    if allowed_s < MIN_SECONDS:
        return None if run.task.advice == "off" else _unmeasured_advice(run, plan, memory, prediction)
    run.backend.limit(run.backend.now() + OVERDUE * allowed_s)
    began = _now(run)
    advisor = _Advisor(run=run, plan=plan, memory=memory, prediction=prediction, deadline=began + allowed_s)
    trials = [advisor.own()]
    for factor in FACTORS:
        too_large = factor * run.task.batch_size > run.task.largest_batch
        if too_large or trials[-1].outcome not in ("own", "measured"):
            break
        trials.append(advisor.larger(factor))
    return BatchAdvice(
        trials=tuple(trials), advised=advised_batch(trials), budget_bytes=run.task.memory_bytes,
        disturbed=advisor.disturbed, asked=run.task.advice == "asked", seconds=_now(run) - began,
    )  # fmt: skip


def _unmeasured_advice(run: SearchRun, plan: Plan, memory: Memory, prediction: Prediction) -> BatchAdvice:
    """Return the advice on twice the batch from predicted memory alone, without a step of it."""
    advisor = _Advisor(run=run, plan=plan, memory=memory, prediction=prediction, deadline=-math.inf)
    trials = [advisor.known()]
    if FACTORS[0] * run.task.batch_size <= run.task.largest_batch:
        trials.append(advisor.larger(FACTORS[0]))
    return BatchAdvice(
        trials=tuple(trials),
        advised=None,
        budget_bytes=run.task.memory_bytes,
        disturbed=False,
        asked=False,
        seconds=0.0,
    )


def allowed_seconds(run: SearchRun, prediction: Prediction) -> float:
    """Return the seconds that the advice may take, the start of its process included."""
    if run.task.advice == "off":
        return 0.0
    if run.task.advice == "asked":
        return ASKED_SHARE * run.task.seconds
    share = TRAINING_SHARE * training_seconds(run, prediction.step_s)
    return min(share, CEILING_SHARE * run.task.seconds, run.task.seconds - run.backend.now())


def advised_batch(trials: Sequence[BatchTrial]) -> int | None:
    """Return the smallest batch within 2 % of the fastest one that is proven faster than the own; None: none is."""
    proven = [trial for trial in trials if trial.ratio is not None and (trial.low or 0.0) > GAIN]
    fastest = max((trial.ratio or 0.0 for trial in proven), default=0.0)
    return min((trial.batch_size for trial in proven if (trial.ratio or 0.0) >= LEVEL * fastest), default=None)


def _now(run: SearchRun) -> float:
    """Return the seconds of wall time since the calibration began."""
    return run.backend.now() + run.backend.import_seconds
