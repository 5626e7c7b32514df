"""Search for the fastest plan that fits into memory; it decides, and a `Backend` measures.

The objective is the wall time of an epoch: its steps and its validation. The constraint is the memory of a training
process; the effective batch never changes. The user's own plan is measured first; the winner is measured again in a
fresh process against it, and replaces it only with a proven gain.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from calibration.acceptance.confirmation import final_measurement
from calibration.acceptance.decision import accept
from calibration.acceptance.scaling import measure_speeds
from calibration.batch_advice import advise_batch
from calibration.measure.backend import Backend
from calibration.memory.model import Memory
from calibration.races.baseline import OVERDUE, probe_memory
from calibration.races.run import Records, SearchRun
from calibration.result import BatchAdvice, CalibrationResult, Confirmation, MemoryProbe, Trial
from calibration.search.own_plan import measure_own_plan, plain_plan
from calibration.search.sweep import sweep
from calibration.task import Task
from calibration.verdicts import confirmed_speed
from preflight.contract.plan import Plan
from preflight.contract.verdicts import Confidence
from preflight.statistics import mean_step, scatter, step_interval, typical, widened
from training.prediction import Prediction

BUSY: Final = 0.1
"""Standard deviation of the logarithm of a plan's speed on a machine that others disturb: twice that is a fifth."""
GRACE: Final = 15.0
"""Seconds beyond the longest time to wait for the user's own plan: without its figure there is none at all."""


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
    memory = probe_memory(run, run.prober.explore)
    run.space = task.space.beside_others(run.prober.free)
    best, memory = measure_own_plan(run, memory)
    best = sweep(run, best, memory)
    confirmation, best = accept(run, best)
    backend.limit(task.seconds + OVERDUE)
    final_measurement(run, best, memory)
    speeds = measure_speeds(run, best) if task.shares else ()
    run.cut = task.batch_size
    prediction = replace(_predict(run, best), speeds=speeds)
    advice = advise_batch(run, best, memory, prediction)
    return _result(run, best, confirmation, memory, prediction, advice)


def _predict(run: SearchRun, plan: Plan) -> Prediction:
    """Return the prediction for the plan that is kept."""
    known = run.evidence[plan]
    estimate = typical if known.period_s is None else mean_step
    step_s, low, high = step_interval(known.blocks or [[known.step_s]], estimate)
    validation_s = run.task.validation * (known.sample_s or 0.0)
    steps = run.task.steps_per_epoch
    epoch_s = steps * step_s + validation_s
    busy = BUSY if run.disturbed or run.crowded or known.disturbed else 0.0
    deviation = max(run.task.unsteadiness, busy, scatter(list(run.paces.values())))
    low_s, high_s = widened(epoch_s, steps * low + validation_s, steps * high + validation_s, deviation)
    return Prediction(
        epoch_s=epoch_s, low_s=low_s, high_s=high_s,
        step_s=step_s, validation_s=validation_s, warm_s=known.warm_s,
        gauge_s=statistics.median(known.gauges) if known.gauges else None,
        threads_alone=_threads_alone(run) if busy or any(trial.disturbed for trial in run.trials) else None,
        raced_step_s=_raced_step_seconds(run, plan),
    )  # fmt: skip


def _threads_alone(run: SearchRun) -> int:
    """Return the threads that are worth a trial once others have left the processors."""
    alone = run.own if run.default is None else plain_plan(run.own, run.task.space, run.task.knobs)
    return alone.threads


def _raced_step_seconds(run: SearchRun, plan: Plan) -> float | None:
    """Return the step seconds of the fastest plan of fewer threads; None where none was faster than `plan`."""
    others = [known.step_s for one, known in run.evidence.items() if one.threads < plan.threads and known.blocks]
    fastest_s = min(others, default=math.inf)
    return fastest_s if fastest_s < run.evidence[plan].step_s else None


def _result(
    run: SearchRun, plan: Plan, confirmation: Confirmation | None, memory: Memory, prediction: Prediction,
    advice: BatchAdvice | None,
) -> CalibrationResult:  # fmt: skip
    doubt = "the machine was busy" if run.disturbed or run.crowded else "" if run.complete else "the time was short"
    confidence: Confidence = "low" if doubt else "high"
    return CalibrationResult(
        baseline=run.task.own, plan=plan, prediction=prediction, trials=tuple(run.trials),
        memory=memory.fit, advice=advice, cut_short=not run.complete, decided=run.decided,
        confirmation=confirmation, confidence=confidence, doubt=doubt, why=_explain(run, confirmation, doubt),
        samples=run.task.samples, batch_size=run.task.batch_size,
        steps_per_epoch=run.task.steps_per_epoch, budget_s=run.task.seconds,
        searched_epochs=run.task.epochs if run.left_out and not run.task.thorough else None,
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
    speed = confirmed_speed(confirmation, doubt, own)
    if not confirmation.proven:
        return f"no other plan was proven faster; the best of {measured} measured is {speed}"
    return speed if doubt else f"{speed}, the fastest of {measured} measured"
