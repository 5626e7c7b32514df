"""What a kept finding means for the job at hand."""

import time
from dataclasses import replace

import pytest
from support.calibration.findings import ADVICE, FASTEST, FINDING

from calibration.cache.plan_cache import SCHEMA, CachedPlan
from calibration.choose import choice_of
from calibration.result import CalibrationResult, Trial
from calibration.task import Options
from preflight.contract.verdicts import BatchOutcome
from training.data.split import Split
from training.prediction import Prediction

COMPILED = replace(FASTEST, compile=True)
TRIAL = Trial(
    knob="compile", plan=COMPILED, verdict="won", note="", at=9.0, seconds=30.0, steps=16, step_s=0.008, ratio=1.25,
    low=1.2, high=1.3,
)  # fmt: skip
ENTRY = CachedPlan(
    schema=SCHEMA, signature="0" * 32, created=time.time(), what={},
    finding=replace(
        FINDING, plan=COMPILED, trials=(*FINDING.trials, TRIAL),
        prediction=Prediction(epoch_s=4.0, low_s=3.9, high_s=4.1, step_s=0.008, validation_s=0.1, warm_s=20.0),
    ),
)  # fmt: skip


STEPS = FINDING.steps_per_epoch


def of_length(total: int) -> Split:
    """Return the parts of a training of so many steps, of which an epoch has at most `STEPS`."""
    return Split(
        train=55_000, available=55_000, validation=5_000, steps=min(STEPS, total), pass_steps=STEPS, total_steps=total
    )  # fmt: skip


@pytest.mark.parametrize(
    ("total", "predicted"),
    [(STEPS // 2, 2.55), (2 * STEPS, 5.0), (STEPS + STEPS // 2, (5.0 + 2.55) / 2)],
    ids=["half an epoch", "two epochs", "one and a half"],
)
def test_a_short_training_is_predicted_by_what_was_found_for_whole_epochs(total: int, predicted: float) -> None:
    """4.9 s of steps and 0.1 s of validation: with half of the steps an epoch has all of its validation."""
    finding = replace(FINDING, prediction=Prediction(
        epoch_s=5.0, low_s=4.5, high_s=6.0, step_s=4.9 / STEPS, validation_s=0.1,
    ))  # fmt: skip
    choice = choice_of(replace(ENTRY, finding=finding), of_length(total))
    assert choice.predicted_epoch_s == pytest.approx(predicted)
    assert choice.prediction is not None
    expected = 2.55 if total < STEPS else 5.0
    assert choice.prediction.epoch_s == pytest.approx(expected)
    assert choice.prediction.high_s / choice.prediction.low_s == pytest.approx(6.0 / 4.5)


@pytest.mark.parametrize(("epochs", "compiled", "predicted"), [(1, False, 5.0), (19, False, 5.0), (100, True, 4.2)])
def test_a_short_training_does_not_pay_for_compiling(epochs: int, compiled: bool, predicted: float) -> None:
    """20 s of compiling that save 1 s an epoch are spent on more than 20 epochs only."""
    choice = choice_of(ENTRY, of_length(epochs * STEPS))
    assert choice.plan == replace(FASTEST, compile=compiled)
    assert choice.predicted_epoch_s == pytest.approx(predicted)
    assert choice.prediction is not None
    assert choice.prediction.over(epochs) == choice.predicted_epoch_s


def test_a_kept_finding_is_a_hit() -> None:
    """Plan, prediction and everything that led to them are those that were found."""
    choice = choice_of(replace(ENTRY, finding=FINDING), of_length(3 * STEPS))
    assert (choice.cache, choice.source, choice.finding) == ("hit", "cache", FINDING)
    assert choice.plan == FINDING.plan
    assert choice.prediction == FINDING.prediction


SHORT = replace(FINDING, cut_short=True, budget_s=45.0)


@pytest.mark.parametrize(
    ("options", "finding", "served"),
    [
        (Options(), SHORT, True),
        (Options(samples=FINDING.samples), FINDING, True),
        (Options(samples=FINDING.samples + 1), FINDING, False),
        (Options(seconds=60.0, explicit_seconds=True), FINDING, True),  # it had all the time that it needed
        (Options(seconds=60.0, explicit_seconds=True), SHORT, False),
        (Options(seconds=45.0, explicit_seconds=True), SHORT, True),
        (Options(seconds=60.0), SHORT, True),  # by default, not because it was asked for
        (Options(advise=True), FINDING, True),
        (Options(advise=True), replace(FINDING, advice=None), False),
        (Options(), replace(FINDING, advice=None), True),
    ],
)
def test_a_finding_serves_where_it_was_measured_with_what_is_asked(
    options: Options, finding: CalibrationResult, served: bool
) -> None:
    assert options.met_by(finding) is served


@pytest.mark.parametrize(
    ("asked", "outcome", "served"),
    [(False, "skipped", False), (True, "skipped", True), (False, "measured", True), (False, "refused", True)],
)
def test_advice_that_was_cut_short_serves_where_it_was_asked_for(
    asked: bool, outcome: BatchOutcome, served: bool
) -> None:
    """It would be cut short again; without being asked for, it had less time."""
    last = replace(ADVICE.trials[-1], outcome=outcome)
    advice = replace(ADVICE, trials=(*ADVICE.trials[:-1], last), asked=asked)
    assert Options(advise=True).met_by(replace(FINDING, advice=advice)) is served
