"""Acceptance: whether the fastest plan replaces the user's own, by its races or by a fresh process."""

from contextlib import suppress
from dataclasses import replace

from calibration.acceptance.confirmation import as_confirmation, confirm
from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.result import Confirmation
from calibration.search.baseline import OVERDUE
from calibration.search.budget import is_costly
from calibration.search.evaluation import GAIN
from calibration.search.run import SearchRun
from calibration.search.timing import epoch_seconds, time_reference, validate
from calibration.statistics import Comparison
from calibration.worth.expectation import confirmation_seconds, horizon_seconds, needs_fresh_process
from training.config.plan import Plan


def accept(run: SearchRun, best: Plan) -> tuple[Confirmation | None, Plan]:
    """Return how much faster the plan that stays is than the user's own, where it is another one, and that plan."""
    if best == run.own:
        return None, best
    raced = run.against_own.get(best)
    proof = raced if raced is not None and raced.low > GAIN else None
    if best == run.reference and proof is not None:  # the container's default, which is surely faster
        return as_confirmation(run, proof, fresh_process=False), best
    if proof is not None and not needs_fresh_process(run, best):
        return _accept_races(run, best, proof)
    cost_s = confirmation_seconds(run, best)
    share = 1 - epoch_seconds(run, best) / epoch_seconds(run, run.reference)
    saving_s = share * horizon_seconds(run, run.reference)
    if saving_s <= cost_s:
        run.left_out = True
        run.unconfirmed = f"proving that another plan is faster would save about {saving_s:.1f} s of its {cost_s:.1f} s"
        return _fallback(run)
    run.backend.limit(run.backend.now() + 3 * cost_s + OVERDUE)
    confirmation, stays = confirm(run, best)
    if run.default is None:
        return confirmation, stays
    before = run.against_own.get(run.default)
    if stays == run.default or confirmation is None or before is None:
        return _fallback(run)
    return as_confirmation(run, before.times(_comparison(confirmation)), fresh_process=True), stays


def _accept_races(run: SearchRun, best: Plan, proof: Comparison) -> tuple[Confirmation, Plan]:
    """Leave what remains to be known of the winner to the final measurement: beside another plan it was slower."""
    known = run.evidence[best]
    if not is_costly(run, known.step_s):
        run.evidence[best] = replace(known, blocks=[])
    with suppress(WorkerLost, PlanFailed):
        time_reference(run, best)
        if known.sample_s is None:
            validate(run, best)
    return as_confirmation(run, proof, fresh_process=False), best


def _fallback(run: SearchRun) -> tuple[Confirmation | None, Plan]:
    """Return what is left where no winner is proven: the container's default where that is, else the user's own."""
    known = run.against_own.get(run.reference)
    return (None if known is None else as_confirmation(run, known, fresh_process=False)), run.reference


def _comparison(confirmed: Confirmation) -> Comparison:
    return Comparison(confirmed.ratio, confirmed.low, confirmed.high, confirmed.pairs)
