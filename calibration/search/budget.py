"""Time budget: seconds of a calibration, steps of a race, end of the races."""

import math
from typing import Final

from calibration.search.run import SearchRun
from calibration.search.search_space import COMPILE_SECONDS
from training.config.plan import Plan

SHARE: Final = 0.05
"""Share of the predicted training time that a calibration may take."""
MIN_SECONDS: Final = 5.0
"""Least budget: the plan is cached for later trainings."""
CONFIRMING: Final = 0.25
"""Share of the budget that the pairs of the confirmation may take."""
CLOSING: Final = 0.10
"""Share of it that is kept for what surrounds them: warming up, a validation, whole batches."""
SLICES: Final = 8
"""Races that the rest of the budget is meant for."""
PAIRS: Final = 4
"""Blocks that the steps of a race are measured in, so that two plans can take turns."""
BLOCK_SECONDS: Final = 0.2
"""A block of less is at the mercy of the scheduler; a slow model's single step is longer."""
SURE: Final = 1.15
"""Above this even the low end of a gain is so far from no gain that no more pairs are needed to prove it."""
MAX_WARM_UP_STEPS: Final = 3
"""Steps of a plan that is new in its process that do not count: they build primitives and fill caches."""
WARM_UP_SECONDS: Final = 0.5
"""A slow model warms up in fewer."""


def budget_seconds(run: SearchRun, step_s: float) -> float:
    """Return the seconds that a calibration may take, where the user's plan takes `step_s` for a step."""
    if run.task.thorough:
        return run.task.seconds
    return min(run.task.seconds, max(MIN_SECONDS, SHARE * training_seconds(run, step_s)))


def training_seconds(run: SearchRun, step_s: float) -> float:
    """Return the predicted seconds of all steps of the training."""
    return run.task.epochs * run.task.steps_per_epoch * step_s


def race_deadline(run: SearchRun, best: Plan) -> float:
    """Return when the races end, so that the best plan can be confirmed; a large gain is confirmed quickly."""
    large = run.evidence[run.own].step_s > SURE**2 * run.evidence[best].step_s
    return run.budget * (1 - CONFIRMING / (1 + large) - CLOSING)


def steps_of_race(run: SearchRun, step_s: float, share: float = 1 / SLICES) -> int:
    """Return how many steps of a plan are measured in a race: what was asked for, within a slice of the time."""
    step_s *= run.part
    wanted = run.task.samples
    if not run.task.exact:
        wanted = max(wanted, math.ceil(PAIRS * BLOCK_SECONDS / step_s))
    # An explicit number of samples may use the longest time; a short training's share would be too little.
    budget = run.task.seconds if run.task.exact else run.budget
    return max(min(2, run.task.samples), min(wanted, int(budget * share / 2 / step_s)))


def race_seconds(run: SearchRun, best: Plan, plan: Plan) -> float:
    """Return about how many seconds a race against the best plan takes, and what its confirmation would add."""
    step_s = run.evidence[best].step_s
    compilings = 2 - best.compile if plan.compile else 0  # in this process, and in the fresh one
    steps = steps_of_race(run, step_s) + warm_up_steps(run, step_s)
    return 2 * steps * step_s * run.part + compilings * COMPILE_SECONDS


def warm_up_steps(run: SearchRun, step_s: float) -> int:
    """Return how many steps of a plan that is new in its process do not count."""
    return max(1, min(MAX_WARM_UP_STEPS, int(WARM_UP_SECONDS / (step_s * run.part))))
