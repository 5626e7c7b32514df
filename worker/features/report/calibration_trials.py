"""Trials of a calibration as rows of a table."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Final

from calibration.result import CalibrationResult, Trial
from calibration.verdicts import explain_trial, verdict_word
from preflight import numbers
from preflight.contract.plan import Plan
from preflight.contract.verdicts import ADOPTED, DISTURBED

Row = tuple[str, ...]
HEADINGS: Final = (
    "Trial", "Verdict", "Ratio", "95 %", "Why", "An epoch", "A step", "Steps", "Samples/s", "Fetching", "Memory",
    "Began", "Took",
)  # fmt: skip


def trial_rows(result: CalibrationResult) -> Iterator[Row]:
    """Yield the cells of each trial, with its changes from the best plan before it."""
    best = result.baseline
    for number, trial in number_trials(result.trials):
        comparison, measured = _comparison(trial), _measurements(trial, result.batch_size)
        place = f"{number} " if number else ""
        yield f"{place}{_change(best, trial)}", verdict_word(trial), *comparison, _why(trial), *measured
        if trial.verdict in ("own", *ADOPTED):
            best = trial.plan


def number_trials(trials: Sequence[Trial]) -> Iterator[tuple[int | None, Trial]]:
    """Yield each trial with its number, from 1; one that was not run has none."""
    number = 0
    for trial in trials:
        number += trial.ran
        yield (number if trial.ran else None), trial


def _change(best: Plan, trial: Trial) -> str:
    if trial.verdict == "own":
        return "your own plan"
    knob = trial.knob.replace("_", " ")
    changed = (
        f"{'' if name == knob else name + ' '}{was} → {value}"
        for name, was, value in compare_plans(best, trial.plan)
        if was != value
    )
    return f"{knob}: {', '.join(changed) or 'unchanged'}"


def _comparison(trial: Trial) -> Row:
    if trial.ratio is None:
        return numbers.NONE, numbers.NONE
    if trial.low is None or trial.high is None:
        return numbers.ratio(trial.ratio), numbers.NONE
    return (
        "unsure" if trial.disturbed else numbers.ratio(trial.ratio),
        numbers.ratio_between(trial.low, trial.high),
    )


def _measurements(trial: Trial, batch_size: int) -> Row:
    none = numbers.NONE
    return (
        none if trial.predicted_epoch_s is None else numbers.seconds(trial.predicted_epoch_s),
        none if trial.step_s is None else numbers.seconds(trial.step_s),
        f"{trial.steps:,}",
        numbers.number(batch_size / trial.step_s) if trial.step_s else none,
        none if trial.fetch_share is None else f"{trial.fetch_share:.1%}",
        none if trial.peak_bytes is None else numbers.size(trial.peak_bytes),
        numbers.seconds(trial.at),
        numbers.seconds(trial.seconds),
    )


def _why(trial: Trial) -> str:
    disturbed = DISTURBED if trial.disturbed else ""
    kept = "measured by an earlier calibration" if trial.kept else ""
    return "; ".join(note for note in (explain_trial(trial), disturbed, kept) if note)


def compare_plans(before: Plan, after: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value before, value after) for each field of a plan."""
    for field in fields(Plan):
        yield field.name.replace("_", " "), _value(getattr(before, field.name)), _value(getattr(after, field.name))


def _value(value: str | int | bool | None) -> str:
    match value:
        case None:
            return numbers.NONE
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
    return value.replace("_", " ")
