"""Plan choice of `preflight calibrate`, as short text or as JSON."""

import json
from collections.abc import Iterator

from pydantic import JsonValue, TypeAdapter

from calibration.choose import PlanChoice
from calibration.result import CalibrationResult, Trial
from calibration.verdicts import confirmed_speed
from preflight.contract.verdicts import DISTURBED, speedup
from preflight.events.plan_words import plan_line
from preflight.numbers import duration, plural, predicted
from worker.cli.formatting.plans import PLAN, format_prediction

FINDING = TypeAdapter(CalibrationResult)


def format_choice(choice: PlanChoice) -> str:
    """Return a choice and its trials in a few lines; see `worker.cli.formatting.explanation` for everything."""
    finding = choice.finding
    seconds = (
        "nothing" if choice.predicted_epoch_s is None else predicted(choice.predicted_epoch_s, None, None, " an epoch")
    )
    foreseen = f"{format_prediction(finding.prediction)}, confidence {finding.confidence}" if finding else seconds
    pieces = finding is not None and choice.plan.micro_batch != finding.baseline.micro_batch
    plan = plan_line(choice.plan, *(("micro_batch",) if pieces else ()))
    return "\n".join(
        [
            *(_trial_lines(finding) if finding else []),
            f"plan       {plan} (the rest under --explain)",
            f"why        {choice.why}",
            f"predicted  {foreseen}",
            f"took       {format_cost(choice)}",
        ]
    )


def format_cost(choice: PlanChoice) -> str:
    """Return the wall time of a calibration with its parts; a plan from the cache has cost it before."""
    finding, now = choice.finding, duration(choice.calibration_seconds)
    if finding is None:
        return now
    budget = f"{duration(finding.budget_s)} were allowed for measuring"
    starts = f"{duration(finding.import_seconds)} to start processes and import torch"
    if choice.cache == "hit":
        return f"nothing now; {duration(finding.calibration_seconds)} when it was measured, of them {starts}"
    return f"{now}, of them {starts}; {budget}"


def _trial_lines(finding: CalibrationResult) -> Iterator[str]:
    """Yield the trials that were run, the confirmation, and how many were skipped."""
    for trial in finding.trials:
        if trial.ran:
            yield _trial_line(trial)
    if (found := finding.confirmation) is not None:
        verdict, seconds = (
            ("level" if not found.proven else "likely" if finding.doubt else "proven"),
            f"{finding.prediction.epoch_s:.2f} s/epoch",
        )
        speed, proof = confirmed_speed(found, finding.doubt), "confirmed" if found.fresh_process else "together"
        yield f"{proof:11} {verdict:8} {seconds if found.proven else '':>14}  against your own plan  {speed}"
    skipped = sum(not trial.ran for trial in finding.trials)
    if skipped:
        yield f"{'skipped':11} {plural(skipped, 'plan')}; --explain says why"


def _trial_line(trial: Trial) -> str:
    seconds = "" if trial.predicted_epoch_s is None else f"{trial.predicted_epoch_s:.2f} s/epoch"
    doubt = DISTURBED if trial.disturbed else ""
    speed = "" if trial.ratio is None else f"  {speedup(trial.ratio, trial.low, trial.high, doubt)}"
    knob, note = trial.knob.replace("_", "-"), f"  {trial.note}" if trial.note else ""
    return f"{knob:11} {trial.verdict:8} {seconds:>14}  {plan_line(trial.plan, trial.knob)}{speed}{note}"


def choice_as_json(choice: PlanChoice) -> str:
    """Return a choice and everything that led to it as one JSON object."""
    finding, (low_s, high_s) = choice.finding, choice.predicted_interval_s or (None, None)
    found: dict[str, JsonValue] = FINDING.dump_python(finding, mode="json") if finding else {}
    fields: dict[str, JsonValue] = {
        **found,
        "source": choice.source,
        "why": choice.why,
        "plan": PLAN.dump_python(choice.plan, mode="json"),
        "predicted_epoch_s": choice.predicted_epoch_s,
        "predicted_low_s": low_s,
        "predicted_high_s": high_s,
        "confidence": finding.confidence if finding else None,
        "max_feasible": finding.memory.max_feasible if finding and finding.memory else None,
        "trials": found.get("trials", []),
        "cache": choice.cache,
        "cache_age_s": choice.cache_age_s,
        "calibration_seconds": choice.calibration_seconds,
        "import_seconds": choice.import_seconds,
    }
    return json.dumps(fields)
