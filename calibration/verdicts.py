"""Words for speeds and verdicts of trials, outcomes and phases of memory probes: for the terminal and the report."""

from collections.abc import Sequence
from typing import Final

from calibration.result import BatchAdvice, BatchTrial, Confirmation, Trial
from preflight.contract.verdicts import MEANINGS, speedup
from preflight.numbers import MIB, two_digits

FINE: Final = 1.15
"""Ratio below which one decimal would hide most of the gain."""


def confirmed_speed(found: Confirmation, doubt: str = "", other: str = "") -> str:
    """Return the winner's speed compared with the `other` plan, as `speedup` does; "at least 57x" by a lower bound."""
    if found.at_least:
        return f"at least {two_digits(found.low)}x{f' as fast as {other}' if other else ''}"
    return speedup(found.ratio, found.low, found.high, doubt, other)


def verdict_word(trial: Trial) -> str:
    """Return the verdict; that of a plan whose turn did not come is "not reached"."""
    return trial.verdict if trial.reached else "not reached"


def explain_trial(trial: Trial) -> str:
    """Return the reason for a verdict: the trial's own note, else the meaning of the verdict."""
    return trial.note or MEANINGS[trial.verdict]


def batch_sentence(advice: BatchAdvice) -> str:
    """Return what larger batches would bring, as a clause without a full stop."""
    own, *larger = advice.trials
    measured = [trial for trial in larger if trial.outcome == "measured"]
    best = next((trial for trial in measured if trial.batch_size == advice.advised), None)
    if best is not None:
        fits = f"{(best.peak_bytes or 0) // MIB:,} MiB of {advice.budget_bytes // MIB:,}"
        return (
            f"batch {best.batch_size:,} would fit ({fits}) and {_faster(best, advice)}; "
            "it changes what is learned, so it is yours to choose"
        )
    unmeasured = _unmeasured(own, larger)
    if not measured:
        return f"no larger batch was measured: {unmeasured}"
    sizes = ", ".join(f"{trial.batch_size:,}" for trial in measured)
    tried = f"{sizes} {'was' if len(measured) == 1 else 'were'} measured"
    return f"a larger batch would not be faster ({tried}{f'; {unmeasured}' if unmeasured else ''})"


def _faster(best: BatchTrial, advice: BatchAdvice) -> str:
    """Return the gain of the advised batch, no finer than it is known."""
    ratio, low, high = (value or 1.0 for value in (best.ratio, best.low, best.high))
    rate = "times as many samples a second"
    if advice.disturbed:
        return f"probably train {low:.1f} to {high:.1f} {rate} (the machine was busy)"
    return f"train {ratio:.{1 if ratio >= FINE else 2}f} {rate}"


def _unmeasured(own: BatchTrial, larger: Sequence[BatchTrial]) -> str:
    """Return why the next larger batch was not measured; empty where the largest of them was."""
    last = larger[-1] if larger else own
    if last.outcome not in ("own", "measured"):
        return f"{last.batch_size:,}: {last.note}"
    return "" if larger else "an epoch has too few samples for one"
