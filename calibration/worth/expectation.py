"""Whether a measurement is worth its time: its expected saving over the rest of the training, and its cost."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from calibration.races.budget import (
    ALLOWED_SECONDS,
    ALLOWED_SHARE,
    CONFIRMING,
    closing_samples,
    gate_seconds,
    steps_of_race,
    warm_up_steps,
)
from calibration.races.racing import race_seconds
from calibration.races.run import SearchRun
from calibration.races.timing import epoch_seconds
from calibration.space import COMPILE_SECONDS, SearchState
from calibration.worth.priors import Change, change_of, prior_of
from preflight.contract.plan import Plan
from preflight.contract.verdicts import TrialKnob
from training.process.launch import process_config

TRAININGS: Final = 100
"""Trainings that a thorough search counts for, at least for as many seconds as `CEILINGS` of its longest times."""
CEILINGS: Final = 20
FRESH_SHARE: Final = 0.02
"""Share of the training that a confirmation in a fresh process may take where the races themselves prove the gain: it
guards against what many races leave to chance, which a short training cannot lose much by."""
CLOSING_SECONDS: Final = 0.4
CLOSING_STEPS: Final = 3
"""Seconds and, which counts for a slow model, steps that are kept for the final measurement (STEADY_SECONDS)."""
PROBABLE: Final = 0.8
"""Probability of winning from which on a plan is measured all the same, where it would save `TIMES` its cost."""
TIMES: Final = 2.0
WITHOUT_BATCH_NORMS: Final[Mapping[Change, Change]] = {
    "bfloat16_alone": "bfloat16_without_batch_norms",
    "channels_last": "channels_last_without_batch_norms",
}
"""Changes whose chances differ where a model has no batch norms."""
EVALUATING: Final = 0.8
"""Share of the validation that a larger evaluation batch cannot save: its arithmetic."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected saving and cost of a measurement, in seconds of wall time."""

    saving_s: float
    cost_s: float
    probability: float = 0.0
    """Probability of winning."""

    @property
    def worth(self) -> bool:
        """Whether the measurement is expected to pay."""
        return self.saving_s > self.cost_s

    @property
    def rate(self) -> float:
        """Return seconds saved by a second of measuring."""
        return self.saving_s / max(1e-9, self.cost_s)

    @property
    def refusal(self) -> str:
        """Return why the measurement is not made."""
        return f"would save about {max(0.0, self.saving_s):.1f} s of the {self.cost_s:.1f} s that testing it costs"


def expect(run: SearchRun, knob: TrialKnob, best: Plan, plan: Plan, known: SearchState) -> Expected:
    """Return what racing `plan` against the best one is expected to save and to cost.

    The saving is the probability of winning, times the share of the time that is gained then, times the rest of the
    training. The cost is the race, the start of a process where the plan needs another one, the comparison of
    gradients, and the probable part of a confirmation that would not be made without it.
    """
    change = _change(run, knob, best, plan, known)
    if change is None:
        return Expected(0.0, 0.0)
    prior = prior_of(change)
    saving_s = prior.probability * min(1 - 1 / prior.gain, _most(change, known)) * horizon_seconds(run, best)
    saving_s -= prior.probability * COMPILE_SECONDS if plan.compile and not best.compile else 0.0
    cost_s = race_seconds(run, best, plan) + start_seconds(run, plan)
    if plan.precision != "float32" and plan.precision != best.precision:
        cost_s += gate_seconds(run, best)
    if best == run.reference and needs_fresh_process(run, best):
        cost_s += prior.probability * confirmation_seconds(run, best)
    return Expected(saving_s, cost_s, prior.probability)


def _change(run: SearchRun, knob: TrialKnob, best: Plan, plan: Plan, known: SearchState) -> Change | None:
    """Return the kind of change that a trial makes, by the plan it starts from and by the model's layers, too."""
    change = change_of(knob, plan, run.task.space.threads[0], disturbed=bool(run.evidence[best].disturbed))
    if change == "smaller_micro_batch" and plan.micro_batch > best.micro_batch:
        return "whole_batch"
    if change == "bfloat16" and best.precision == "bfloat16":
        change = "channels_last"
    if change and not known.batch_statistics:
        return WITHOUT_BATCH_NORMS.get(change, change)
    return change


def _most(change: Change, known: SearchState) -> float:
    """Return the largest share of the time that a change can save."""
    if change in ("loader", "prefetch"):
        return known.fetch_share
    return known.validation_share * (1 - EVALUATING) if change == "eval_batch" else 1.0


def horizon_seconds(run: SearchRun, plan: Plan) -> float:
    """Return the seconds under `plan` of all trainings that a faster plan would serve."""
    seconds = run.task.epochs * epoch_seconds(run, plan)
    if run.task.thorough or run.task.exact:
        return max(TRAININGS * seconds, CEILINGS * run.task.seconds)
    return seconds


def needs_fresh_process(run: SearchRun, plan: Plan) -> bool:
    """Whether the training is so long that a plan is confirmed in a fresh process even where races prove its gain."""
    return confirmation_seconds(run, plan) <= FRESH_SHARE * horizon_seconds(run, plan)


def is_affordable(run: SearchRun, best: Plan, expected: Expected) -> bool:
    """Whether the time gained and the allowed loss cover the time spent and this trial, or it very probably pays.

    Where the user's own plan alone took more than that, only a gain can make up for it: one race is allowed then.
    """
    step_s = run.evidence[best].step_s
    part = closing_samples(run, step_s) / run.task.batch_size
    closing_s = CLOSING_SECONDS + CLOSING_STEPS * step_s * part
    left_s = spendable_seconds(run, best)
    probable = expected.probability >= PROBABLE and expected.rate >= TIMES
    overspent = left_s < 0 and not any(trial.ratio for trial in run.trials)
    free = run.task.thorough or run.task.exact
    return free or probable or overspent or expected.cost_s + closing_s <= left_s


def spendable_seconds(run: SearchRun, best: Plan) -> float:
    """Return the seconds gained plus those that may be lost, less those spent; negative where more were spent."""
    own_s = run.task.epochs * epoch_seconds(run, run.own)
    gained_s = own_s - run.task.epochs * epoch_seconds(run, best)
    spent_s = run.backend.now() + run.backend.import_seconds
    return max(ALLOWED_SECONDS, ALLOWED_SHARE * own_s) + gained_s - spent_s


def start_seconds(run: SearchRun, plan: Plan) -> float:
    """Return the seconds until a process for the plan is ready: none where one is."""
    ready = any(process_config(plan) == process_config(one) for one in run.evidence)
    return 0.0 if ready else run.start_s


def confirmation_seconds(run: SearchRun, plan: Plan) -> float:
    """Return about how many seconds a confirmation in a fresh process takes, against the plan that is to be beaten."""
    step_s, plan_s = run.evidence[run.reference].step_s, run.evidence[plan].step_s
    steps = steps_of_race(run, step_s, CONFIRMING) + warm_up_steps(run, step_s)
    return run.start_s + steps * (step_s + plan_s) * run.part + (COMPILE_SECONDS if plan.compile else 0.0)
