"""The user's own plan where it is not the container's default: that one is measured first.

A plan of far more threads than cores may take seconds for a step, so that it is measured no longer than needed.
"""

import math
from typing import Final

from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.memory.model import Memory
from calibration.search.baseline import OVERDUE, measure_baseline, measure_default, record_own
from calibration.search.budget import steps_of_race
from calibration.search.evaluation import evaluate
from calibration.search.progress import end_trial
from calibration.search.run import PlanStats, SearchRun
from calibration.search.timing import measure, validate
from calibration.statistics import MIN_PAIRS, compare
from calibration.worth.earlier import plain_plan
from training.config.plan import Plan

OWN_SECONDS: Final = 3.0
"""Most time for single steps of the user's own plan; two of 99 threads on two processors take that long."""
HOPELESS: Final = 3.0
"""How many times slower than the default a step may be, for the plan to be measured like others: no noise does that."""


def measure_own_plan(run: SearchRun, memory: Memory) -> tuple[Plan, Memory]:
    """Measure the user's own plan, after the container's default where that is another one; return the faster one."""
    default = plain_plan(run.own, run.task.space, run.task.knobs)
    if default == run.own or not measure_default(run, default, memory):
        return measure_baseline(run, memory)
    began, deadline = run.backend.now(), run.backend.now() + OWN_SECONDS
    run.backend.limit(deadline)
    run.records.attempt(run.own)
    try:
        hopeless = _is_hopeless(run, default, deadline)
    except (WorkerLost, PlanFailed) as error:
        run.records.mark_ok(run.own)
        if isinstance(error, PlanFailed) or error.memory or run.backend.now() < deadline:
            run.evidence.pop(run.own, None)
            return measure_baseline(run, memory)
        hopeless = True
        if run.own not in run.evidence:  # its first two steps did not end in time
            run.evidence[run.own] = PlanStats(OWN_SECONDS / 2 / run.part, [])
    return (_leave_own if hopeless else _race_own)(run, default, memory, began), memory


def _is_hopeless(run: SearchRun, default: Plan, deadline: float) -> bool:
    """Measure single steps of the user's plan until they are surely slower than the default's, or surely not."""
    while True:
        measure(run, run.own, 1, like_s=math.inf)
        known = run.evidence[run.own]
        if known.step_s < HOPELESS * run.evidence[default].step_s:
            return False
        if len(known.blocks) >= MIN_PAIRS or run.backend.now() + known.step_s * run.part > deadline:
            return True


def _leave_own(run: SearchRun, default: Plan, memory: Memory, began: float) -> Plan:
    """Go on from the default; the user's own plan stays the baseline of all ratios."""
    own, known = run.evidence[run.own], run.evidence[default]
    own.sample_s = (known.sample_s or 0.0) * own.step_s / known.step_s
    run.backend.limit(run.task.seconds + OVERDUE)
    steps = f"{len(own.blocks)} steps" if own.blocks else f"{OWN_SECONDS:.0f} s without two whole steps"
    record_own(run, memory, began, f"stopped after {steps}: surely slower than the container's default")
    comparison = compare([(block, known.blocks[0]) for block in own.blocks or [(own.step_s,)]])
    end_trial(run, "default", default, "won", "one thread for each whole core", began, run.own, comparison)
    run.default, run.against_own[default] = default, comparison
    return default


def _race_own(run: SearchRun, default: Plan, memory: Memory, began: float) -> Plan:
    step_s = run.evidence[run.own].step_s
    run.backend.limit(run.task.seconds + OVERDUE)
    measure(run, run.own, steps_of_race(run, step_s), like_s=step_s)
    validate(run, run.own)
    record_own(run, memory, began)
    return default if evaluate(run, "default", run.own, default) else run.own
