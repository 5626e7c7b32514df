"""Words for speeds and verdicts of trials, outcomes and phases of memory probes: for the terminal and the report."""

from collections.abc import Mapping
from typing import Final

from calibration.result import Trial, Verdict

VERDICTS: Final[Mapping[Verdict, str]] = {
    "own": "your own plan, measured first",
    "won": "faster (95 %)",
    "kept": "not faster, but better in another way",
    "level": "not proven faster",
    "lost": "slower",
    "dropped": "slower (95 %), stopped early",
    "rejected": "its gradients differ",
    "failed": "its process was killed or failed",
    "skipped": "not worth a measurement",
}
OUTCOMES: Final = {
    "fits": "within the limit",
    "over": "ran, but above the limit",
    "killed": "ran out of memory",
    "refused": "predicted not to fit, not run",
}
"""Outcome of a memory probe -> its meaning."""
PHASES: Final = {"line": "for the memory model", "1A": "the whole batch", "1B": "doubling", "1C": "bisection"}
"""Phase of the memory search -> its meaning."""


DISTURBED: Final = "the machine was busy"
"""Doubt about a trial during which something else used the processors."""


NARROW: Final = 0.2
"""Width of an interval of ratios whose ends two digits may not tell apart."""


def speedup(ratio: float, low: float | None, high: float | None, doubt: str = "", other: str = "") -> str:
    """Return how fast a plan is beside the `other` one: 1.77x as fast as your own plan (1.72x to 1.81x).

    With a `doubt` about the measurement only its 95 % interval is known, which no single figure may hide: "probably
    faster (1.8x to 5.4x; the machine was busy)".
    """
    if low is None or high is None:
        doubt = f" ({doubt})" if doubt else ""
        return f"about {ratio:.2f}x{f' as fast as {other}' if other else ''}{doubt}"
    if not doubt:
        return f"{ratio:.2f}x{f' as fast as {other}' if other else ''} ({low:.2f}x to {high:.2f}x)"
    side = "probably faster" if low > 1 else "probably slower" if high < 1 else "faster or slower"
    return f"{side}{f' than {other}' if other else ''} ({rough_interval(low, high)}; {doubt})"


def rough_interval(low: float, high: float, unit: str = "x") -> str:
    """Return an interval of ratios with two digits, or as many as tell its ends apart: 1.8x to 5.4x."""
    digits = ".2f" if high - low < NARROW else ".2g"
    return f"{low:{digits}}{unit} to {high:{digits}}{unit}"


def verdict_word(trial: Trial) -> str:
    """Return the verdict; that of a plan whose turn did not come is "not reached"."""
    return trial.verdict if trial.reached else "not reached"


def explain_trial(trial: Trial) -> str:
    """Return the reason for a verdict: the trial's own note, else the meaning of the verdict."""
    return trial.note or VERDICTS[trial.verdict]
