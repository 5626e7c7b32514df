"""Baseline: the user's own plan, measured first, in smaller pieces where memory demands it."""

from collections.abc import Callable
from functools import partial
from typing import Final

from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.memory.model import Memory
from calibration.memory.prober import SLOW
from calibration.races.budget import budget_seconds, steps_of_race
from calibration.races.progress import Tried, make_trial, record_trial
from calibration.races.run import NothingMeasured, SearchRun
from calibration.races.timing import measure, time_reference, validate
from preflight.contract.plan import Plan

MIN_SAMPLES: Final = 32
"""Least samples of a step in a comparison: with fewer, the fixed cost of every layer counts for too much."""
RESTARTS: Final = 2
"""Processes that may be lost before the search ends with what it has."""
OVERDUE: Final = 10.0
"""Seconds beyond the budget, where the longest time allows them, after which a measurement is taken for hung."""


def probe_memory(run: SearchRun, explore: Callable[[], Memory]) -> Memory:
    """Return the memory of the user's plan; a lost process is replaced by another."""
    while True:
        try:
            memory = explore()
        except WorkerLost as error:
            _count_loss(run, error)
        except PlanFailed as error:
            raise NothingMeasured(str(error), run.own) from error
        else:
            run.batch_statistics = memory.batch_statistics
            run.own = memory.plan
            return memory


def _count_loss(run: SearchRun, error: WorkerLost) -> None:
    """Count a process that was lost before any measurement; raises `NothingMeasured` at the last one."""
    run.failures += 1
    if run.failures > RESTARTS or run.backend.now() >= run.task.seconds:
        raise NothingMeasured(str(error), run.own) from error


def measure_baseline(run: SearchRun, memory: Memory) -> tuple[Plan, Memory]:
    """Measure the user's own plan, in smaller pieces after an out-of-memory kill; return it and its memory."""
    began = run.backend.now()
    while True:
        _set_pace(run, memory)
        run.records.attempt(run.own)
        try:
            _measure_alone(run, run.own, memory)
            break
        except WorkerLost as error:
            run.records.mark_ok(run.own)
            _count_loss(run, error)
            if error.memory:
                if run.own.micro_batch == 1:
                    raise NothingMeasured(str(error), run.own) from error
                memory = probe_memory(run, partial(run.prober.killed, run.own.micro_batch))
        except PlanFailed as error:
            raise NothingMeasured(str(error), run.own) from error
    end_baseline(run, run.own, memory)
    record_own(run, memory, began)
    return run.own, memory


def measure_default(run: SearchRun, default: Plan, memory: Memory) -> bool:
    """Measure the container's default before the user's own plan; return whether it runs."""
    _set_pace(run, memory)
    run.records.attempt(default)
    try:
        _measure_alone(run, default, memory)
    except (WorkerLost, PlanFailed):
        run.failures += 1
        run.evidence.pop(default, None)
        return False
    finally:
        run.records.mark_ok(default)
    end_baseline(run, default, memory)
    return True


def _set_pace(run: SearchRun, memory: Memory) -> None:
    run.budget = budget_seconds(run, memory.step_s)
    run.cut = _comparison_samples(run, memory)


def _measure_alone(run: SearchRun, plan: Plan, memory: Memory) -> None:
    measure(run, plan, steps_of_race(run, memory.step_s), like_s=memory.step_s)
    validate(run, plan)
    time_reference(run, plan)


def end_baseline(run: SearchRun, plan: Plan, memory: Memory) -> None:
    """Set the lengths of races by the step that was measured first, and the seconds that its process took to start."""
    run.noise = run.evidence[plan].disturbed
    run.budget = budget_seconds(run, run.evidence[plan].step_s)
    run.start_s = run.backend.import_seconds / (1 + run.failures)
    run.backend.limit(max(1.2 * run.budget, min(run.task.seconds, run.budget + OVERDUE)))
    record_peak(run, plan, memory)


def record_own(run: SearchRun, memory: Memory, began: float, note: str = "") -> None:
    """Record the trial of the user's own plan."""
    notes = [each for each in (memory.note, note) if each]
    if run.cut < run.task.batch_size:
        notes.append(f"plans are compared on steps of {run.cut} samples, as whole ones take {memory.step_s:.1f} s")
    record_trial(run, make_trial(run, Tried("own", run.own, began), "own", "; ".join(notes)), None)


def _comparison_samples(run: SearchRun, memory: Memory) -> int:
    """Return the samples of a comparison: the whole batch, unless its step is slow."""
    cut = run.task.batch_size
    while cut // 2 >= MIN_SAMPLES and memory.step_s * cut / run.task.batch_size > SLOW:
        cut //= 2
    return cut


def record_peak(run: SearchRun, plan: Plan, memory: Memory) -> None:
    """Replace the predicted peak of the user's plan by the measured one, where whole micro-batches were measured."""
    if run.cut >= plan.micro_batch and plan == run.own:
        memory.verified(run.evidence[plan].peak_bytes)
