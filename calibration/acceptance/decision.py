"""Acceptance: whether the fastest plan replaces the user's own, by its races or by a fresh process."""

from contextlib import suppress
from dataclasses import replace

from calibration.acceptance.confirmation import as_confirmation, confirm
from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.races.baseline import OVERDUE
from calibration.races.budget import is_costly
from calibration.races.evaluation import GAIN
from calibration.races.progress import CLEAR, OBVIOUS
from calibration.races.run import SearchRun
from calibration.races.timing import epoch_seconds, time_reference, validate
from calibration.result import Confirmation
from calibration.worth.expectation import confirmation_seconds, horizon_seconds, needs_fresh_process
from preflight.contract.plan import Plan
from preflight.statistics import Comparison


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
    cost_s, saving_s = confirmation_seconds(run, best), _saving_seconds(run, best)
    if saving_s <= cost_s:
        run.left_out = True
        run.unconfirmed = f"proving that another plan is faster would save about {saving_s:.1f} s of its {cost_s:.1f} s"
        return _accept_unconfirmed(run, best)
    run.backend.limit(run.backend.now() + 3 * cost_s + OVERDUE)
    confirmation, stays = confirm(run, best)
    if confirmation is None:  # what died in a fresh process would die in the training
        run.decided = stays != best
        return _accept_unconfirmed(run, best) if stays == best else _fallback(run)
    if run.default is None:
        return confirmation, stays
    if stays == run.default and not _is_likely(run, best, confirmation):
        return _fallback(run)
    return as_confirmation(run, _against_own(run, _comparison(confirmation)), fresh_process=True), best


def _saving_seconds(run: SearchRun, best: Plan) -> float:
    """Return the seconds that the winner would save over the training, by its races.

    Only a pair was measured at the same time: on a shared machine the paces of two plans at other times say little.
    """
    raced = run.raced.get(best)
    needed = epoch_seconds(run, best) / epoch_seconds(run, run.reference) if raced is None else 1 / raced.ratio
    return (1 - needed) * horizon_seconds(run, run.reference)


def _is_likely(run: SearchRun, best: Plan, confirmation: Confirmation | None = None) -> bool:
    """Whether the winner stays though its gain over the default is not proven.

    On a busy machine an interval is wide, and the user's own plan is out either way: then it stays where its races and
    the confirmation, if there was one, agree.
    """
    raced = run.raced.get(best)
    busy = run.default is not None and (run.crowded or run.disturbed)
    confirmed = confirmation is None or confirmation.ratio > GAIN
    return busy and confirmed and raced is not None and raced.ratio > GAIN


def _accept_unconfirmed(run: SearchRun, best: Plan) -> tuple[Confirmation | None, Plan]:
    """Return the winner where its races leave no doubt, or it is likely; else the fallback."""
    raced = run.raced.get(best)
    if raced is None or not (raced.low > CLEAR or raced.ratio > OBVIOUS or _is_likely(run, best)):
        return _fallback(run)
    run.unconfirmed, run.disturbed, run.decided = "", True, True
    return _accept_races(run, best, _against_own(run, raced))


def _against_own(run: SearchRun, found: Comparison) -> Comparison:
    """Return the speed against the user's own plan, from a comparison with the reference."""
    before = None if run.default is None else run.against_own.get(run.default)
    return found if before is None else before.times(found)


def _accept_races(run: SearchRun, best: Plan, proof: Comparison) -> tuple[Confirmation, Plan]:
    """Leave the winner's exact speed to the final measurement: in turns with another plan it was slower."""
    known = run.evidence[best]
    if not is_costly(run, known.step_s):
        run.evidence[best] = replace(known, blocks=[])
    with suppress(WorkerLost, PlanFailed):
        time_reference(run, best)
        if known.sample_s is None:
            validate(run, best)
    return as_confirmation(run, proof, fresh_process=False), best


def _fallback(run: SearchRun) -> tuple[Confirmation | None, Plan]:
    """Return the plan where no winner is proven: the default where it is surely faster, else the user's own."""
    known = run.against_own.get(run.reference)
    return (None if known is None else as_confirmation(run, known, fresh_process=False)), run.reference


def _comparison(confirmed: Confirmation) -> Comparison:
    return Comparison(confirmed.ratio, confirmed.low, confirmed.high, confirmed.pairs)
