"""The reasons for a plan in a few words."""

from collections.abc import Iterator

from calibration.result import CalibrationResult
from calibration.verdicts import confirmed_speed
from preflight.contract.verdicts import ADOPTED, DISTURBED, proof, speedup
from preflight.events.plan_words import changes
from preflight.numbers import plural


def reasons(result: CalibrationResult) -> str:
    """Return what each adopted trial changed and gained, and the confirmation, in one line; empty where none was."""
    return "; ".join(_reasons(result))


def _reasons(result: CalibrationResult) -> Iterator[str]:
    best = result.baseline
    for trial in result.trials:
        if trial.verdict in ADOPTED:
            speed = (
                ""
                if trial.ratio is None
                else f": {speedup(trial.ratio, trial.low, trial.high, DISTURBED if trial.disturbed else '')}"
            )
            note = f", {trial.note}" if trial.note else ""
            yield f"{changes(best, trial.plan)}{speed}{note}"
        if trial.verdict in ("own", *ADOPTED):
            best = trial.plan
    if (found := result.confirmation) is not None:
        pairs = f"{plural(found.pairs, 'pair')} with your own plan"
        yield f"together, {proof(found.fresh_process)}, {pairs}: {confirmed_speed(found, result.doubt)}"
