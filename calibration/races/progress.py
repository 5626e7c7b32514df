"""Trials: each is recorded on disk and reported as it ends."""

from dataclasses import dataclass
from typing import Final

from calibration.races.run import SearchRun
from calibration.races.timing import epoch_seconds
from calibration.result import Trial
from preflight.contract.plan import NEEDED, Plan
from preflight.contract.verdicts import ADOPTED, TrialKnob, Verdict
from preflight.statistics import MIN_PAIRS, Comparison, slowest

CLEAR: Final = 1.15
"""Low end of a gain above which fewer pairs prove it: long steps, or a plan that does not fit next to another. A fresh
process still confirms it where the training is long enough for that."""
OBVIOUS: Final = 3.0
"""Low end of a gain that no noise brings about: it is proven next to a busy neighbour, too, while that one stays."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan that is being tried, for the sake of one knob."""

    knob: TrialKnob
    plan: Plan
    began: float
    """Time at which it began, in seconds of the backend's clock."""


def make_trial(
    run: SearchRun, tried: Tried, verdict: Verdict, note: str, comparison: Comparison | None = None
) -> Trial:
    """Return the trial of a plan with its measurements."""
    plan = tried.plan
    known = run.evidence.get(plan)
    steps = [step for block in known.blocks for step in block] if known else []
    saving_s, cost_s = run.expected.get(plan, (None, None))
    # A ratio of two single figures has no interval: one without a width would read as certainty.
    spread = comparison if comparison and comparison.low < comparison.high else None
    return Trial(
        knob=tried.knob, plan=plan, verdict=verdict, note=note, at=tried.began,
        seconds=max(0.0, run.backend.now() - tried.began),
        steps=len(steps), steps_asked=len(steps) + known.cut_short if known and known.cut_short else None,
        step_s=known.step_s if known else None,
        predicted_epoch_s=epoch_seconds(run, plan) if known else None,
        slowest_s=slowest(steps) if steps else None,
        ratio=comparison.ratio if comparison else None, low=spread.low if spread else None,
        high=spread.high if spread else None,
        fetch_share=known.fetch_share if known else None, peak_bytes=known.peak_bytes if known else None,
        disturbed=bool(run.noise), expected_saving_s=saving_s, expected_cost_s=cost_s,
    )  # fmt: skip


def end_trial(
    run: SearchRun, tried: Tried, verdict: Verdict, note: str, best: Plan, comparison: Comparison | None = None
) -> bool:
    """Record the verdict on a plan; return whether it won."""
    won, plan = verdict in ADOPTED, tried.plan
    if won and comparison:
        run.gained[plan] = comparison.ratio
        _chain(run.raced, run.reference, best, plan, comparison)
        if _is_proven(run, comparison):
            run.disturbed |= bool(run.noise)
            _chain(run.against_own, run.own, best, plan, comparison)
    record_trial(run, make_trial(run, tried, verdict, note, comparison), best)
    return won


def _is_proven(run: SearchRun, comparison: Comparison) -> bool:
    """Whether a race proves its gain; all races are disturbed where others held processors from the beginning."""
    if not run.noise:
        return is_clear(comparison)
    return comparison.low > (CLEAR if run.crowded else OBVIOUS)


def is_clear(comparison: Comparison) -> bool:
    """Whether an undisturbed race has as many pairs as its gain takes to be proven."""
    return comparison.pairs >= MIN_PAIRS or comparison.low > CLEAR


def _chain(known: dict[Plan, Comparison], first: Plan, best: Plan, plan: Plan, comparison: Comparison) -> None:
    """Note in `known` the speed of a winner against the plan `first`, where races lead back to that."""
    before = known.get(best)
    if best == first:
        known[plan] = comparison
    elif before is not None:
        known[plan] = before.times(comparison)


def record_trial(run: SearchRun, trial: Trial, best: Plan | None) -> None:
    """Record a trial on disk and report it."""
    run.records.record(trial, best)
    note_trial(run, trial)


def note_trial(run: SearchRun, trial: Trial) -> None:
    """Report a trial that is not to be recorded."""
    run.trials.append(trial)
    run.tell(trial)


def skip(run: SearchRun, knob: TrialKnob, plan: Plan, why: str, *, reached: bool = True) -> None:
    """Report a plan that is not worth a measurement, or was not `reached`."""
    saving_s, cost_s = run.expected.get(plan, (None, None))
    trial = Trial(
        knob=knob, plan=plan, verdict="skipped", note=why, at=run.backend.now(), seconds=0.0, reached=reached,
        expected_saving_s=saving_s, expected_cost_s=cost_s,
    )  # fmt: skip
    note_trial(run, trial)


def skip_for_time(run: SearchRun, knob: TrialKnob, plan: Plan, why: str) -> None:
    """Skip a plan that the search does not reach; without a main knob the search is not complete."""
    run.complete &= knob not in NEEDED
    skip(run, knob, plan, why, reached=False)
