"""Search for the fastest plan that fits into memory; it decides, and a `Backend` measures.

The objective is the wall time of an epoch: its steps and its validation. The constraint is the memory of a training
process; the effective batch never changes. The user's own plan is measured first; the winner is measured again in a
fresh process against it, and replaces it only with a proven gain.
"""

import statistics
from collections.abc import Callable
from typing import Final

from calibration.measure.backend import Backend
from calibration.result import CalibrationResult, Confidence, Confirmation, MemoryFit, MemoryProbe, Trial
from calibration.search.baseline import measure_baseline, probe_memory
from calibration.search.confirmation import confirm, final_measurement
from calibration.search.run import Records, SearchRun
from calibration.search.sweep import knob_order, sweep_knob
from calibration.statistics import step_interval
from calibration.task import Task
from calibration.verdicts import speedup
from training.config.plan import Plan
from training.loop.prediction import Prediction

GRACE: Final = 15.0
"""Seconds beyond the longest time for which the user's own plan is waited: without its figure there is none at all."""


def search(
    task: Task, backend: Backend, records: Records, tell: Callable[[Trial | MemoryProbe], None]
) -> CalibrationResult:
    """Return the result; `tell` is called with each memory probe, and with each trial as it ends.

    Raises:
        OutOfMemory: even a micro-batch of one sample was killed for memory.
        NothingMeasured: not even the user's own plan could be measured.
    """
    run = SearchRun.start(task, backend, records, tell)
    backend.limit(task.seconds + GRACE)
    best, memory = measure_baseline(run, probe_memory(run, run.prober.explore))
    for knob in knob_order(run):
        best = sweep_knob(run, knob, best, memory)
    confirmation, best = confirm(run, best)
    final_measurement(run, best, memory)
    return _result(run, best, confirmation, memory.fit)


def _result(run: SearchRun, plan: Plan, confirmation: Confirmation | None, fit: MemoryFit | None) -> CalibrationResult:
    known = run.evidence[plan]
    step_s, low, high = step_interval(known.blocks)
    validation_s = run.task.validation * (known.sample_s or 0.0)
    steps = run.task.steps_per_epoch
    prediction = Prediction(
        epoch_s=steps * step_s + validation_s, low_s=steps * low + validation_s, high_s=steps * high + validation_s,
        step_s=step_s, validation_s=validation_s, warm_s=known.warm_s,
        gauge_s=statistics.median(known.gauges) if known.gauges else None,
    )  # fmt: skip
    doubt = "the machine was busy" if run.disturbed else "" if run.complete else "the time was short"
    confidence: Confidence = "low" if doubt else "high"
    return CalibrationResult(
        baseline=run.task.own, plan=plan, prediction=prediction, trials=tuple(run.trials), memory=fit,
        confirmation=confirmation, confidence=confidence, doubt=doubt, why=_explain(run, confirmation, doubt),
        samples=run.task.samples, batch_size=run.task.batch_size, steps_per_epoch=steps, budget_s=run.budget,
        calibration_seconds=run.backend.now() + run.backend.import_seconds,
        import_seconds=run.backend.import_seconds,
    )  # fmt: skip


def _explain(run: SearchRun, confirmation: Confirmation | None, doubt: str) -> str:
    measured = len({trial.plan for trial in run.trials if trial.step_s is not None})
    if run.unconfirmed:
        return run.unconfirmed
    if confirmation is None:
        unreached = sum(not trial.reached for trial in run.trials)
        late = f"; plans not reached in time: {unreached}" if unreached and not run.complete else ""
        return ("no other plan was faster" if measured > 1 else "no other plan was measured") + late
    own = "your own plan" if confirmation.proven else ""
    speed = speedup(confirmation.ratio, confirmation.low, confirmation.high, doubt, own)
    if not confirmation.proven:
        return f"no other plan was proven faster; the best of {measured} measured is {speed}"
    return speed if doubt else f"{speed}, the fastest of {measured} measured"
