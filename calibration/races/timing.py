"""Measurements of one plan: steps, validation, reference workload."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from calibration.measure.protocol import Measure
from calibration.races.budget import warm_up_steps
from calibration.races.run import PlanStats, SearchRun
from preflight.contract.plan import Plan

PATIENCE: Final = 3.0
"""Largest ratio of the time of a measurement to its expected time."""
EVAL_SAMPLES: Final = 2000
"""Samples that the cost of a validation is measured on; fewer where a model takes long for them."""
LEAST_EVAL_SAMPLES: Final = 32
"""Least number of those samples, however long a model takes."""
EVAL_SECONDS: Final = 0.4
"""Most seconds of that measurement, as estimated from a training step."""


def measure(run: SearchRun, plan: Plan, steps: int, *, like_s: float) -> Sequence[float]:
    """Time `steps` steps of a plan, one of which takes about `like_s`; return the seconds of whole ones.

    Fewer are timed, one at least, once they have taken `PATIENCE` times as long as expected: a plan that a neighbour
    slows down is known to be slow by then. The user's own number of steps is kept.
    """
    bounded = math.isfinite(like_s) and not run.task.exact
    order = Measure(
        plan=plan, steps=steps, warm_up=warm_up_steps(run, like_s), samples=run.cut,
        most_s=PATIENCE * max(1, steps) * like_s * run.part if bounded else None,
    )  # fmt: skip
    measured = run.backend.measure(order).whole(run.part)
    run.evidence.setdefault(plan, PlanStats(1.0, [])).add(measured)
    run.evidence[plan].cut_short += max(0, steps - len(measured.seconds))
    if measured.seconds:
        run.paces.setdefault((plan, run.cut), []).append(statistics.fmean(measured.seconds))
    return measured.seconds


def validate(run: SearchRun, plan: Plan, seconds: float = EVAL_SECONDS, like: Plan | None = None) -> None:
    """Measure the cost of a validation, for some `seconds`; `like` is the plan whose steps this one shares."""
    if like is not None:
        run.evidence[plan] = replace(run.evidence[like], blocks=list(run.evidence[like].blocks), sample_s=None)
    if not run.task.validation:
        run.evidence[plan].sample_s = 0.0
        return
    sample_s = run.evidence[plan].step_s / run.task.batch_size  # an upper bound: forward alone is less
    samples = min(run.task.validation, EVAL_SAMPLES, max(LEAST_EVAL_SAMPLES, int(seconds / 3 / sample_s)))
    run.evidence[plan].sample_s = run.backend.validate(plan, samples).sample_s


def time_reference(run: SearchRun, plan: Plan) -> None:
    """Time the reference workload on the plan's threads."""
    run.evidence[plan].gauges.append(run.backend.gauge(plan).seconds)


def epoch_seconds(run: SearchRun, plan: Plan) -> float:
    """Return the predicted seconds of an epoch; a validation that was not timed is scaled from the user's plan."""
    known, own = run.evidence[plan], run.evidence[run.own]
    sample_s = known.sample_s
    if sample_s is None:
        sample_s = (own.sample_s or 0.0) * known.step_s / own.step_s
    return run.task.steps_per_epoch * known.step_s + run.task.validation * sample_s


def split_steps(steps: int, blocks: int) -> list[int]:
    """Return the number of steps of each block that has any."""
    counts = [steps * (turn + 1) // blocks - steps * turn // blocks for turn in range(blocks)]
    return [count for count in counts if count]
