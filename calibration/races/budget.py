"""Time budget: seconds of a calibration, steps of a race, end of the races."""

import math
from typing import Final

from calibration.races.run import SearchRun
from preflight.contract.plan import Plan

SHARE: Final = 0.05
"""Share of the predicted training time that the lengths of races are made for; it bounds no search."""
MOST_SHARE: Final = 0.5
"""Share of a short training that they are made for at most."""
MIN_SECONDS: Final = 5.0
"""Least seconds that the lengths of races are made for: shorter races tell plans apart by chance."""
CONFIRMING: Final = 0.25
"""Share of the budget that the pairs of the confirmation may take."""
CLOSING: Final = 0.10
"""Share of the budget that is kept for warming up, a validation and whole batches."""
SLICES: Final = 8
"""Races that the rest of the budget is meant for."""
PAIRS: Final = 4
"""Blocks that the steps of a race are measured in, so that two plans can take turns."""
BLOCK_SECONDS: Final = 0.2
"""Least seconds of a block, as the scheduler disturbs shorter ones; a slow model's single step is longer."""
SURE: Final = 1.15
"""Low end of a gain that is so far from no gain that no more pairs are needed to prove it."""
MAX_WARM_UP_STEPS: Final = 3
"""Steps of a plan that is new in its process that do not count: they build primitives and fill caches."""
WARM_UP_SECONDS: Final = 0.25
"""Longest warm-up in seconds: a slow model warms up in fewer steps."""
STEADY_STEPS: Final = 2
"""Least steps of the final measurement."""
ALLOWED_SHARE: Final = 0.03
"""Share of the training that may be spent without a gain; `ALLOWED_SECONDS` of a short one."""
ALLOWED_SECONDS: Final = 2.0
GATE: Final = (8, 32)
"""Steps, and their samples, before gradients are compared (docs/decisions.md)."""
SLOW_GATE: Final = (4, 16)
"""The same for a slow model: the cosine of `resnet18` was 0.9996 or more in four seeds."""


def budget_seconds(run: SearchRun, step_s: float) -> float:
    """Return the seconds that races are made for, where the user's plan takes `step_s` for a step."""
    training_s = max(1.0, training_seconds(run, step_s))
    if run.task.thorough:
        return run.task.seconds
    return min(run.task.seconds, max(min(MIN_SECONDS, MOST_SHARE * training_s), SHARE * training_s))


def training_seconds(run: SearchRun, step_s: float) -> float:
    """Return the predicted seconds of all steps of the training."""
    return run.task.epochs * run.task.steps_per_epoch * step_s


def race_deadline(run: SearchRun, best: Plan) -> float:
    """Return when the races end, so that the best plan can be confirmed; a large gain is confirmed quickly."""
    large = run.evidence[run.own].step_s > SURE**2 * run.evidence[best].step_s
    return run.task.seconds - run.budget * (CONFIRMING / (1 + large) + CLOSING)


def steps_of_race(run: SearchRun, step_s: float, share: float = 1 / SLICES) -> int:
    """Return how many steps of a plan are measured in a race: the number asked for, within a slice of the time."""
    step_s *= run.part
    wanted = run.task.samples
    if not run.task.exact:
        wanted = max(wanted, math.ceil(PAIRS * BLOCK_SECONDS / step_s))
    # An explicit number of samples may use the longest time; a short training's share would be too little.
    budget = run.task.seconds if run.task.exact else run.budget
    return max(min(2, run.task.samples), min(wanted, int(budget * share / 2 / step_s)))


def warm_up_steps(run: SearchRun, step_s: float) -> int:
    """Return how many steps of a plan that is new in its process do not count."""
    return max(1, min(MAX_WARM_UP_STEPS, int(WARM_UP_SECONDS / (step_s * run.part))))


def closing_samples(run: SearchRun, step_s: float) -> int:
    """Return the samples of a step in the final measurement, where a whole batch takes `step_s`.

    As many as let a few steps be a small part of the training, and no fewer than in races: steps of 128 samples of
    `resnet18` in bfloat16 are 3 to 9 % quicker by sample than those of 32 (docs/decisions.md).
    """
    samples = run.task.batch_size
    if run.task.thorough or run.task.exact:
        return samples
    allowed_s = max(ALLOWED_SECONDS, ALLOWED_SHARE * training_seconds(run, step_s))
    while samples > run.cut and (1 + STEADY_STEPS) * step_s * samples / run.task.batch_size > allowed_s:
        samples //= 2
    return samples


def is_costly(run: SearchRun, step_s: float) -> bool:
    """Whether a few whole batches of `step_s` are a good part of the training: then all is measured on parts, once."""
    return closing_samples(run, step_s) < run.task.batch_size


def gate_size(run: SearchRun) -> tuple[int, int]:
    """Return the steps, and their samples, after which the gradients of two precisions are compared."""
    return GATE if run.part == 1 else SLOW_GATE


def gate_seconds(run: SearchRun, best: Plan) -> float:
    """Return about how many seconds that comparison takes: those steps, and one more batch under either plan."""
    steps, samples = gate_size(run)
    return (steps + 2) * min(1.0, samples / run.task.batch_size) * run.evidence[best].step_s
