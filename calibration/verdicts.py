"""Words for verdicts of trials, outcomes and phases of memory probes: for the terminal, the report and the page."""

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
    "skipped": "not run",
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


def explain_trial(trial: Trial) -> str:
    """Return the reason for a verdict: the trial's own note, else the meaning of the verdict."""
    return trial.note or VERDICTS[trial.verdict]
