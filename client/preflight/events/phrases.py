"""Parts of events in words, for a view that lays them out itself: it takes all its words for them from here."""

import re
from typing import Final, Literal

from preflight.contract.verdicts import DISTURBED, MEANINGS, proof, speedup
from preflight.numbers import duration, predicted, two_digits
from preflight.wire import AnyEvent, CalibrationTrial, CalibrationWinner, PredictionChecked

OWN_PLAN: Final = "the job's own plan"
SOURCES: Final[dict[Literal["cache", "measured", "own", "kept"], str]] = {
    "measured": "Measured in this container before the training",
    "cache": "Reused from a calibration in an equal container",
    "own": "The job's own",
    "kept": "Kept from an earlier attempt",
}
"""Source of a plan -> its meaning."""
STAGES: Final = {
    "job_started": "preparing the data set",
    "resource_limits": "preparing the data set",
    "dataset_ready": "choosing a plan",
    "memory_probe": "calibrating",
    "calibration_trial": "calibrating",
    "calibration_winner": "starting the training process",
    "training_config": "starting the training process",
}
"""Type of an event -> activity of the attempt after it, until its first step."""


def phrases(event: AnyEvent) -> dict[str, str]:
    """Return the parts of an event in words by their names; empty where its sentence is enough."""
    match event:
        case CalibrationTrial():
            return _of_trial(event)
        case CalibrationWinner():
            return _of_winner(event)
        case PredictionChecked():
            foreseen = predicted(event.predicted_s, event.low_s, event.high_s)
            return {"found": f"{duration(event.measured_s)} measured, predicted: {foreseen}"}
    return {}


def speed_of(winner: CalibrationWinner, other: str = "") -> str:
    """Return how fast the winner is compared with the `other` plan; empty where nothing was compared."""
    if winner.ratio is None:
        return ""
    beside = f" as fast as {other}" if other else ""
    if winner.at_least:
        return _typeset(f"at least {two_digits(winner.ratio)}x{beside}")
    doubt = (winner.doubt or "confidence low") if winner.confidence == "low" else ""
    return _typeset(speedup(winner.ratio, winner.ratio_low, winner.ratio_high, doubt, other))


def _of_trial(trial: CalibrationTrial) -> dict[str, str]:
    verdict = trial.verdict or ("won" if trial.won else "level")
    doubt = DISTURBED if trial.disturbed else ""
    speed = "" if trial.ratio is None else _typeset(speedup(trial.ratio, trial.low, trial.high, doubt))
    return {"meaning": trial.note or MEANINGS[verdict], "speed": speed}


def _of_winner(winner: CalibrationWinner) -> dict[str, str]:
    proven, speed = proof(winner.fresh_process), speed_of(winner)
    epoch_s, low, high = winner.predicted_epoch_s, winner.predicted_low_s, winner.predicted_high_s
    return {
        "prediction": "" if epoch_s is None else predicted(epoch_s, low, high),
        "source": SOURCES[winner.source], "speed": speed,
        "confirmation": f"{speed_of(winner, OWN_PLAN)}, {proven}" if speed else "",
        "proof": f"{proven}, against {OWN_PLAN}{'' if _is_better(winner) else ', which stays'}",
    }  # fmt: skip


def _is_better(winner: CalibrationWinner) -> bool:
    return (winner.ratio_low or 0.0) > 1 if winner.proven is None else winner.proven


def _typeset(text: str) -> str:
    """Return ratios with the sign of multiplication."""
    return re.sub(r"(?<=\d)x\b", "\u00d7", text)
