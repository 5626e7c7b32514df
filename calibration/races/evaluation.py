"""Evaluation of one candidate plan against the best one: race, verdict, reuse of earlier trials."""

from dataclasses import replace
from typing import Final

from calibration.measure.backend import PlanFailed, WorkerLost
from calibration.races.baseline import OVERDUE
from calibration.races.budget import PAIRS, gate_size, training_seconds
from calibration.races.progress import Tried, end_trial, note_trial
from calibration.races.racing import DROP_BELOW, fit_side_by_side, race, race_seconds, race_validation
from calibration.races.run import SearchRun
from calibration.races.timing import PATIENCE, epoch_seconds
from calibration.result import Trial
from preflight.contract.plan import NEEDED, Plan
from preflight.contract.verdicts import ADOPTED, TrialKnob, Verdict
from preflight.statistics import MIN_PAIRS, Comparison

GAIN: Final = 1.03
"""Least proven gain; less is within the noise of a shared machine."""
LIKELY: Final = 1.01
"""Least gain of a knob that affects speed alone; a false one does not survive the confirmation."""
LEVEL: Final = 0.98
"""A smaller micro-batch with this ratio wins, as it saves memory."""
COSINE: Final = 0.99
"""Least cosine between the gradients of a reduced precision and those of float32."""


def evaluate(run: SearchRun, knob: TrialKnob, best: Plan, plan: Plan) -> bool:
    """Measure a plan against the best one; return whether it won."""
    tried, run.noise = Tried(knob, plan, run.backend.now()), ""
    if run.records.crashed_before(plan):
        return end_trial(run, tried, "failed", "an earlier calibration crashed under it", best)
    # The cost of compiling is charged to the whole training, whose length may have been different then.
    kept = None if knob == "compile" else run.records.lookup(best, plan)
    if kept is not None:
        return reuse_trial(run, kept, best)
    run.records.attempt(plan)
    run.backend.limit(min(run.task.seconds, tried.began + PATIENCE * race_seconds(run, best, plan)) + OVERDUE)
    try:
        if plan.precision != "float32" and plan.precision != best.precision:
            if not fit_side_by_side(run, best, plan):
                run.backend.isolate(plan)  # comparing gradients takes a second model
            steps, samples = gate_size(run)
            cosine = run.backend.check(plan, best, steps=steps, samples=samples).cosine
            if not cosine > COSINE:
                note = f"its gradients differ from those of {best.precision}: cosine {cosine:.3f}, at least {COSINE}"
                return end_trial(run, tried, "rejected", note, best)
        comparison = race_validation(run, best, plan) if knob == "eval_batch" else race(run, best, plan)
    except PlanFailed as error:
        return end_trial(run, tried, "failed", str(error), best)
    except WorkerLost as error:
        run.failures += 1
        return end_trial(run, tried, "failed", str(error), best)
    verdict, note = judge(run, knob, best, plan, comparison)
    return end_trial(run, tried, verdict, note, best, comparison)


def judge(run: SearchRun, knob: TrialKnob, best: Plan, plan: Plan, comparison: Comparison) -> tuple[Verdict, str]:
    """Return the verdict on a plan and a note."""
    ratio = comparison.ratio
    if knob == "compile" and plan.compile:
        ratio = training_seconds(run, run.evidence[best].step_s) / (
            training_seconds(run, run.evidence[plan].step_s) + run.evidence[plan].warm_s
        )
        note = f"{ratio:.2f}x with its {run.evidence[plan].warm_s:.0f} s of compiling over the whole training"
        return ("won" if ratio >= GAIN else "lost"), note
    if knob == "micro_batch" and plan.micro_batch < best.micro_batch:
        paid = min(1.0, run.paid * ratio)
        if paid >= LEVEL:
            run.paid = paid
            return _adopted(comparison), "as fast in less memory"
    if comparison.high < DROP_BELOW and MIN_PAIRS <= comparison.pairs < PAIRS:
        return "dropped", f"slower (95 %) after {comparison.pairs} pairs"
    if ratio >= GAIN and comparison.low > 1:
        return "won", ""
    if ratio >= LIKELY and knob in NEEDED and plan.precision == best.precision:
        return "won", "likely, not proven"
    return ("lost" if ratio <= 1 and comparison.high <= 1 else "level"), ""


def _adopted(comparison: Comparison) -> Verdict:
    """Return the verdict on a plan that is taken for another reason than its speed; it won where it is faster, too."""
    return "won" if comparison.low > 1 else "kept"


def reuse_trial(run: SearchRun, kept: Trial, best: Plan) -> bool:
    """Report the trial of an earlier calibration; return whether it won."""
    if kept.verdict in ADOPTED and kept.ratio:
        run.gained[kept.plan] = kept.ratio
        known, step_s, sample_s = run.evidence[best], run.evidence[best].step_s / kept.ratio, None
        if kept.knob == "eval_batch":  # there the steps stay as they are, and the ratio is that of an epoch
            step_s = known.step_s
            rest_s = epoch_seconds(run, best) / kept.ratio - run.task.steps_per_epoch * step_s
            sample_s = max(0.0, rest_s) / max(1, run.task.validation)
        run.evidence[kept.plan] = replace(known, step_s=step_s, sample_s=sample_s, blocks=[])
    note_trial(run, replace(kept, at=run.backend.now(), seconds=0.0, kept=True))
    return kept.verdict in ADOPTED
