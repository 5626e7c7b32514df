"""Plan choice of `preflight calibrate`, as short text or as JSON."""

import json

from pydantic import JsonValue, TypeAdapter

from calibration.choose import PlanChoice
from calibration.result import CalibrationResult, Trial
from worker.cli.formatting.plans import PLAN, format_prediction
from worker.events.plan_words import plan_line

FINDING = TypeAdapter(CalibrationResult)


def format_choice(choice: PlanChoice) -> str:
    """Return a choice and its trials in a few lines; see `worker.cli.formatting.explanation` for everything."""
    finding = choice.finding
    seconds = "not measured" if choice.predicted_epoch_s is None else f"{choice.predicted_epoch_s:.2f} s per epoch"
    predicted = f"{format_prediction(finding.prediction)}, confidence {finding.confidence}" if finding else seconds
    return "\n".join(
        [
            *(map(_trial_line, finding.trials) if finding else []),
            f"plan       {plan_line(choice.plan)}",
            f"why        {choice.why}",
            f"predicted  {predicted}",
            f"took       {choice.calibration_seconds:.1f} s, and {choice.import_seconds:.1f} s to import torch",
        ]
    )


def _trial_line(trial: Trial) -> str:
    seconds = "" if trial.predicted_epoch_s is None else f"{trial.predicted_epoch_s:.2f} s/epoch"
    ratio = "" if trial.ratio is None else f"{trial.ratio:.2f}x"
    knob = trial.knob.replace("_", "-")
    return f"{knob:11} {trial.verdict:8} {seconds:>14} {ratio:>6}  {plan_line(trial.plan)}  {trial.note}".rstrip()


def choice_as_json(choice: PlanChoice) -> str:
    """Return a choice and everything that led to it as one JSON object."""
    finding = choice.finding
    found: dict[str, JsonValue] = FINDING.dump_python(finding, mode="json") if finding else {}
    fields: dict[str, JsonValue] = {
        **found,
        "source": choice.source,
        "why": choice.why,
        "plan": PLAN.dump_python(choice.plan, mode="json"),
        "predicted_epoch_s": choice.predicted_epoch_s,
        "predicted_low_s": finding.prediction.low_s if finding else None,
        "predicted_high_s": finding.prediction.high_s if finding else None,
        "confidence": finding.confidence if finding else None,
        "max_feasible": finding.memory.max_feasible if finding and finding.memory else None,
        "trials": found.get("trials", []),
        "cache": choice.cache,
        "cache_age_s": choice.cache_age_s,
        "calibration_seconds": choice.calibration_seconds,
        "import_seconds": choice.import_seconds,
    }
    return json.dumps(fields)
