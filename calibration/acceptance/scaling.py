"""Speed of the plan that stays on fewer threads: what a share of the processors is worth to it."""

import statistics
from dataclasses import replace
from typing import Final

from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.measure.protocol import Measure
from calibration.races.budget import training_seconds, warm_up_steps
from calibration.races.run import SearchRun
from calibration.worth.expectation import spendable_seconds
from preflight.contract.plan import Plan
from training.prediction import Speeds, ordered

SPEED_SECONDS: Final = 0.25
"""Seconds for which each number of threads is timed."""
LEAST_STEPS: Final = 2
SHARE: Final = 0.02
"""Share of a training that all of them may take; a shorter one is packed by what trainings gain on average."""


def measure_speeds(run: SearchRun, plan: Plan) -> Speeds:
    """Return the steps a second of `plan` on its threads, half of them, and so on down to one.

    Steps that races measured are not measured again. Empty where others use the processors, or time is too short.
    """
    if run.crowded or run.disturbed or plan.compile:
        return ()
    found = {plan.threads: run.evidence[plan].step_s}
    left_s = min(run.left_s, SHARE * training_seconds(run, run.evidence[plan].step_s), spendable_seconds(run, plan))
    for count in [plan.threads >> power for power in range(1, plan.threads.bit_length())]:
        other = replace(plan, threads=count)
        raced = run.evidence.get(other)
        if raced is not None and raced.blocks and not raced.disturbed:
            found[count] = raced.step_s
            continue
        most_s = found[min(found)] * min(found) / count  # of a step: half the threads take twice as long at most
        warm_up = warm_up_steps(run, most_s)
        steps = max(LEAST_STEPS, int(SPEED_SECONDS / (most_s * run.part)))
        cost_s = (warm_up + steps) * most_s * run.part
        if cost_s > left_s:
            return ()
        left_s -= cost_s
        step_s = _step_seconds(run, plan, Measure(plan=other, steps=steps, warm_up=warm_up, samples=run.cut))
        if step_s is None:
            return ()
        found[count] = step_s
    return ordered([(threads, 1 / step_s) for threads, step_s in found.items()])


def _step_seconds(run: SearchRun, plan: Plan, order: Measure) -> float | None:
    """Return the seconds of a whole step; None where they cannot be measured, or something disturbed them."""
    try:
        if 2 * run.evidence[plan].peak_bytes > run.task.memory_bytes:
            run.backend.isolate(order.plan)
        measured = run.backend.measure(order).whole(run.part)
    except (WorkerLost, PlanFailed):
        return None
    return None if measured.disturbed else statistics.median(measured.seconds)
