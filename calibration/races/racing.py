"""Race: two plans are measured in turns and compared pair by pair."""

from collections.abc import Sequence
from typing import Final

from calibration.measure.backend import WorkerLost
from calibration.races.budget import PAIRS, SLICES, SURE, is_costly, steps_of_race, warm_up_steps
from calibration.races.progress import is_clear
from calibration.races.run import SearchRun
from calibration.races.timing import epoch_seconds, measure, split_steps, validate
from calibration.space import COMPILE_SECONDS
from preflight.contract.plan import Plan
from preflight.statistics import MIN_PAIRS, Comparison, compare

DROP_BELOW: Final = 0.85
"""A challenger whose interval lies below this ratio is dropped."""
AGAIN: Final = 2
"""Most disturbed pairs of a race that are measured again."""
Pair = tuple[Sequence[float], Sequence[float]]
"""Seconds of steps of the best plan, and of the challenger right before or after."""


def race_seconds(run: SearchRun, best: Plan, plan: Plan) -> float:
    """Return about how many seconds a race against the best plan takes, and what its confirmation would add."""
    step_s = run.evidence[best].step_s
    compilings = 2 - best.compile if plan.compile else 0  # in this process, and in the fresh one
    steps = steps_of_race(run, step_s)
    again = steps if fit_side_by_side(run, best, plan) else 0  # else the best plan's earlier steps are used
    return (steps + again + warm_up_steps(run, step_s)) * step_s * run.part + compilings * COMPILE_SECONDS


def race(run: SearchRun, best: Plan, plan: Plan) -> Comparison:
    """Compare both pair by pair; race again where too few pairs leave a gain open: a fresh process would cost more."""
    taken = run_pairs(run, best, plan, PAIRS, 1 / SLICES)
    found, noise = compare(taken), run.noise
    if len(taken) > 1 and found.ratio > 1 and not is_clear(found):
        found = compare([*taken, *run_pairs(run, best, plan, PAIRS, 1 / SLICES)])
        run.noise = noise or run.noise
    return found


def run_pairs(run: SearchRun, best: Plan, plan: Plan, pairs: int, share: float) -> list[Pair]:
    """Measure pairs, as `measure_pairs`; a process that does not answer in time ends them, and those before it count.

    Raises:
        WorkerLost: a process was lost for another reason, or in the first pair.
        PlanFailed: one of the plans does not run.
    """
    taken: list[Pair] = []
    try:
        measure_pairs(run, best, plan, pairs, share, taken)
    except WorkerLost as error:
        if not error.late or not taken:
            raise
        run.failures += 1
    return taken


def race_validation(run: SearchRun, best: Plan, plan: Plan) -> Comparison:
    """Compare two evaluation batches by the gain of a whole epoch."""
    validate(run, plan, like=best)
    mine, theirs = epoch_seconds(run, plan), epoch_seconds(run, best)
    return Comparison(theirs / mine, theirs / mine, theirs / mine, 1)


def measure_pairs(
    run: SearchRun, best: Plan, plan: Plan, pairs: int, share: float, taken: list[Pair]
) -> None:  # fmt: skip
    """Measure both in turns (A B, B A, ...) within a share of the budget; add the seconds to `taken` pair by pair.

    A pair during which something else used the processors is measured again, `AGAIN` times at most; then the trial
    counts as disturbed. It is not where others held processors from the beginning: they stay. Plans that do not fit
    side by side, or whose turns cost much, are measured one after the other.
    """
    run.noise = ""
    step_s = run.evidence[best].step_s
    steps = steps_of_race(run, step_s, share)
    if not fit_side_by_side(run, best, plan):
        if not run.evidence[best].blocks:  # its trial was kept
            run.backend.isolate(best)
            measure(run, best, steps, like_s=step_s)
        run.backend.isolate(plan)
        taken.append((run.evidence[best].blocks[-1], measure(run, plan, steps, like_s=step_s)))
        run.noise = run.evidence[best].disturbed or run.evidence[plan].disturbed
        return
    again = AGAIN if run.crowded else 0
    counts = split_steps(steps, pairs)
    while len(taken) < len(counts):
        order = (plan, best) if len(taken) % 2 else (best, plan)
        blocks = {one: measure(run, one, counts[len(taken)], like_s=step_s) for one in order}
        noise = run.evidence[best].disturbed or run.evidence[plan].disturbed
        if noise and again < AGAIN and run.left_s > 0:
            again += 1
            for one in order:
                run.evidence[one].forget_last()
            continue
        run.noise = run.noise or noise
        taken.append((blocks[best], blocks[plan]))
        if len(taken) >= MIN_PAIRS and compare(taken).high < DROP_BELOW:
            break
        if len(taken) >= PAIRS < pairs and compare(taken).low > SURE:
            break


def fit_side_by_side(run: SearchRun, best: Plan, plan: Plan) -> bool:
    """Whether both models fit into memory, no loader of one works while the other is timed, and turns cost little."""
    if is_costly(run, run.evidence[best].step_s):
        return False
    idle = best.loader_workers == plan.loader_workers == 0
    return idle and 2 * run.evidence[best].peak_bytes <= run.task.memory_bytes


def in_epochs(run: SearchRun, one: Plan, other: Plan, steps: Comparison) -> Comparison:
    """Return a comparison of the steps of two plans, converted to whole epochs, validation included."""
    steps_s = run.task.steps_per_epoch * run.evidence[one].step_s
    mine_s, others_s = (run.task.validation * (run.evidence[plan].sample_s or 0.0) for plan in (one, other))

    def of_epochs(ratio: float) -> float:
        return (steps_s + mine_s) / (steps_s / ratio + others_s)

    return Comparison(of_epochs(steps.ratio), of_epochs(steps.low), of_epochs(steps.high), steps.pairs)
