"""Confirmation of the winner in a fresh process, and the final measurement of the plan that stays."""

import math
import statistics
from dataclasses import replace
from typing import Final

from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.memory.model import Memory
from calibration.races.baseline import record_peak
from calibration.races.budget import CONFIRMING, STEADY_STEPS, closing_samples, steps_of_race, training_seconds
from calibration.races.evaluation import GAIN
from calibration.races.outpacing import HOPELESS, is_outpaced
from calibration.races.racing import in_epochs, run_pairs
from calibration.races.run import PlanStats, SearchRun
from calibration.races.timing import measure, split_steps, time_reference, validate
from calibration.result import Confirmation
from calibration.worth.expectation import spendable_seconds
from preflight.contract.plan import Plan
from preflight.statistics import Comparison, compare, typical

SINGLE_SECONDS: Final = 3.0
"""Most time for single steps of a plan that was many times slower in its races."""
CONFIRMING_PAIRS: Final = 7
"""Pairs of the confirmation: with six, a single disturbed pair would decide the low end of the gain."""
STEADY_SECONDS: Final = 0.4
"""Seconds for which the kept plan runs at last, alone and on whole batches, as it will in training."""
STEADY_PERIODS: Final = 60
"""Quota periods for which it runs then, where a quota sets the pace: single periods differ (docs/decisions.md)."""
MAX_STEADY_SECONDS: Final = 6.0
"""Most seconds of that run under a quota."""
STEADY_SHARE: Final = 0.06
"""Share of a training that this run may take in any case; beyond, the plan's gain has to pay for it."""
MARGIN: Final = 0.04
"""Share of the longest time that is kept in reserve: asking and answering take time, too."""
STEADY_BLOCKS: Final = 4
"""Blocks of that run, few enough that a disturbance within them does not outweigh the confirmation's blocks."""
AGREEING: Final = 0.10
"""Largest difference between its step time and the confirmation's; beyond, the machine had changed between them."""


def confirm(run: SearchRun, best: Plan) -> tuple[Confirmation | None, Plan]:
    """Measure the winner in a fresh process against the user's own plan; return which of them stays.

    Without a confirmation the winner stays where time ran out, and else the other plan.
    """
    reference = run.reference
    if best == reference:
        return None, best
    raced = run.evidence[best]
    try:
        run.backend.restart(best)
        run.evidence[best] = PlanStats(raced.step_s, [])  # the best of many was lucky, too
        comparison = _by_single_steps(run, reference, best) or _by_pairs(run, reference, best)
        time_reference(run, best)
        validate(run, best)
        if best.eval_batch != reference.eval_batch:
            validate(run, reference)
            comparison = in_epochs(run, reference, best, comparison)
        run.disturbed = bool(run.noise)
    except (WorkerLost, PlanFailed) as error:
        run.complete = False
        run.unconfirmed = f"the winner could not be confirmed: {error}"
        run.evidence[best] = raced
        return None, best if isinstance(error, WorkerLost) and error.late else reference
    confirmation = as_confirmation(run, comparison, fresh_process=True)
    return confirmation, best if confirmation.proven else reference


def _by_single_steps(run: SearchRun, reference: Plan, best: Plan) -> Comparison | None:
    """Return the speed of a winner that was many times faster in its races; None where single steps do not tell.

    The winner is measured first, and the other plan no longer than it takes to see that it is slower.
    """
    quick_s = run.evidence[best].step_s
    if run.evidence[reference].step_s < HOPELESS * quick_s:
        return None
    block = measure(run, best, steps_of_race(run, quick_s), like_s=quick_s)
    began, first = run.backend.now(), len(run.evidence[reference].blocks)
    try:
        outpaced = is_outpaced(run, reference, statistics.median(block), began + SINGLE_SECONDS)
    except WorkerLost as error:
        if not error.late:
            raise
        outpaced = True
    slow = run.evidence[reference].blocks[first:] or [((run.backend.now() - began) / run.part,)]
    run.noise = run.evidence[reference].disturbed or run.evidence[best].disturbed
    return compare([(steps, block) for steps in slow]) if outpaced else None


def _by_pairs(run: SearchRun, reference: Plan, best: Plan) -> Comparison:
    """Return the speed of the winner by pairs; measure as many again where a gain is probable but not proven."""
    taken = run_pairs(run, reference, best, CONFIRMING_PAIRS, CONFIRMING)
    comparison, noise = compare(taken), run.noise
    left = min(CONFIRMING, (run.left_s - MARGIN * run.task.seconds) / run.budget)
    if comparison.low <= GAIN < comparison.ratio and left > 0:
        taken += run_pairs(run, reference, best, CONFIRMING_PAIRS, left)
        comparison, run.noise = compare(taken), noise or run.noise
    return comparison


def as_confirmation(run: SearchRun, found: Comparison, *, fresh_process: bool) -> Confirmation:
    """Return a comparison with the user's own plan, proven where its low end is above the least gain."""
    return Confirmation(
        ratio=found.ratio, low=found.low, high=found.high, pairs=found.pairs, proven=found.low > GAIN,
        fresh_process=fresh_process, at_least=not run.evidence[run.own].blocks,
    )  # fmt: skip


def _steady_seconds(run: SearchRun, plan: Plan) -> float:
    """Return how long the plan that is kept runs at last: longer under a quota, less where training gains little."""
    known = run.evidence[plan]
    lasting_s = max(STEADY_SECONDS, min(MAX_STEADY_SECONDS, STEADY_PERIODS * (known.period_s or 0.0)))
    if run.task.thorough or run.task.exact:
        return lasting_s
    paid_s = max(STEADY_SHARE * training_seconds(run, known.step_s), spendable_seconds(run, plan))
    return min(lasting_s, paid_s)


def final_measurement(run: SearchRun, plan: Plan, memory: Memory) -> None:
    """Time the plan that is kept as it will train: by itself, for longer than a block.

    On whole batches, or on smaller ones where these are a good part of the training. Left out where there is no time
    for it. A failure costs nothing but confidence. Under a quota no earlier step counts: in a race each of two
    plans pays for what the other drives out of the caches.
    """
    known = run.evidence[plan]
    step_s, earlier, left_s = known.step_s, len(known.blocks), run.left_s - MARGIN * run.task.seconds
    samples = closing_samples(run, step_s)
    grows, part = samples > run.cut, samples / run.task.batch_size
    affordable = int(left_s / step_s / part) - grows  # a step that warms up
    steps = min(affordable, max(STEADY_STEPS, int(_steady_seconds(run, plan) / step_s / part)))
    if steps < STEADY_STEPS:
        run.complete &= not grows
        return
    alone = grows or known.period_s is not None
    try:
        if grows:
            run.cut = samples
            run.backend.isolate(plan)
        if alone:
            run.evidence[plan] = replace(known, blocks=[])
        for count in split_steps(steps, STEADY_BLOCKS):
            measure(run, plan, count, like_s=step_s)
    except (WorkerLost, PlanFailed):
        run.complete, run.evidence[plan] = False, known
        return
    record_peak(run, plan, memory)
    last = run.evidence[plan].blocks[0 if alone else earlier :]
    if not grows and earlier and abs(math.log(typical(last) / step_s)) > AGREEING:
        run.disturbed = True
