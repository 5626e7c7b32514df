"""Calibration section of a report: winner, prediction, plan, trials, memory, effort."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from calibration.races.evaluation import GAIN
from calibration.result import BatchTrial, CalibrationResult, Confirmation, MemoryFit
from calibration.verdicts import batch_sentence
from preflight import numbers
from preflight.contract.verdicts import ADOPTED, MEANINGS, OUTCOMES, PHASES
from worker.features.report.calibration_plots import memory_of_micro_batches, speed_of_trials
from worker.features.report.calibration_trials import HEADINGS, Row, compare_plans, trial_rows
from worker.features.report.request import CalibrationReportRequest
from worker.features.report.templates import render_template


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSection:
    """Words, rows and plots of templates/calibration.html."""

    result: CalibrationResult
    winner: str
    confirmation: str
    prediction: tuple[Row, ...]
    plans: tuple[tuple[str, ...], ...]
    gain: str
    headings: Row
    trials: tuple[Row, ...]
    verdicts: Row
    drawn_trials: Markup
    memory: Row
    probes: tuple[Row, ...]
    outcomes: Row
    drawn_memory: Markup
    advice: str
    batches: tuple[Row, ...]
    facts: tuple[Row, ...]
    effort: tuple[Row, ...]


def calibration_page(request: CalibrationReportRequest) -> str:
    """Return a page with the calibration section alone."""
    section = calibration_section(request.result, request.facts)
    title = f"Calibration of {request.subject}"
    return render_template("calibration_page.html", title=title, subject=request.subject, section=section)


def calibration_section(result: CalibrationResult, facts: Mapping[str, str]) -> CalibrationSection:
    """Return the section of a result; `facts` describe the container."""
    fit = result.memory
    probes = fit.probes if fit else ()
    return CalibrationSection(
        result=result, winner=winner(result), confirmation=_confirmation(result), prediction=tuple(_prediction(result)),
        plans=tuple(_plans(result)), gain=numbers.ratio(GAIN), headings=HEADINGS, trials=tuple(trial_rows(result)),
        verdicts=tuple(trial.verdict for trial in result.trials),
        drawn_trials=speed_of_trials(result.trials, result.confirmation, sure=not result.doubt),
        memory=_memory(result), probes=tuple(_probes(fit)) if fit else (),
        outcomes=tuple(probe.outcome for probe in probes),
        drawn_memory=memory_of_micro_batches(fit) if fit and probes else Markup(""),
        advice=batch_sentence(result.advice) if result.advice else "",
        batches=tuple(map(_batch, result.advice.trials)) if result.advice else (),
        facts=tuple(facts.items()), effort=tuple(_effort(result)),
    )  # fmt: skip


def winner(result: CalibrationResult) -> str:
    """Return the outcome as a sentence."""
    confirmed = result.confirmation
    if confirmed is None or not confirmed.proven:
        cut = "" if result.plan == result.baseline else ", with smaller batches, as memory demands"
        return f"Your own plan stays{cut}: no other was proven faster"
    if result.doubt:
        between = numbers.rough_ratios(confirmed.low, confirmed.high)
        return f"Probably faster than your own plan ({between}; {result.doubt})"
    return f"{_ratio(confirmed)} as fast as your own plan"


def _ratio(found: Confirmation) -> str:
    return f"{'at least ' if found.at_least else ''}{numbers.ratio(found.ratio)}"


def _own_epoch_s(result: CalibrationResult) -> float | None:
    return next((trial.predicted_epoch_s for trial in result.trials if trial.verdict == "own"), None)


def _confirmation(result: CalibrationResult) -> str:
    confirmed = result.confirmation
    if confirmed is None:
        if any(trial.verdict in ADOPTED for trial in result.trials):
            return f"Not confirmed in a fresh process: {result.why}."
        return "Nothing was to be confirmed in a fresh process: no other plan had won."
    speed = f"only the interval is known, as {result.doubt}" if result.doubt else f"{_ratio(confirmed)} as fast"
    how = "In a fresh process, in turns with" if confirmed.fresh_process else "By the races alone, against"
    return (
        f"{how} your own plan: {speed}, 95 % interval "
        f"{numbers.ratio_between(confirmed.low, confirmed.high)}, from {numbers.plural(confirmed.pairs, 'pair')}. "
        f"The lower bound is {'above' if confirmed.proven else 'not above'} {numbers.ratio(GAIN)}, the least gain that "
        "counts."
    )


def _prediction(result: CalibrationResult) -> Iterator[Row]:
    predicted, confirmed = result.prediction, result.confirmation
    own = predicted.epoch_s * confirmed.ratio if confirmed else _own_epoch_s(result)
    whole, interval = numbers.seconds_between(predicted.epoch_s, predicted.low_s, predicted.high_s)

    def aligned(seconds: float) -> str:
        return numbers.seconds(seconds, like=predicted.epoch_s)

    steps = f"{numbers.plural(result.steps_per_epoch, 'step')} of {numbers.seconds(predicted.step_s)}"
    yield "Training steps", aligned(max(0.0, predicted.epoch_s - predicted.validation_s)), steps
    yield "Validation", aligned(predicted.validation_s), ""
    yield "An epoch, once warm", whole, f"95 % interval {interval}"
    yield "Warm-up", aligned(predicted.warm_s), "once per process, in addition"
    if confirmed and result.doubt and result.plan != result.baseline:
        between = f"{aligned(predicted.epoch_s * confirmed.low)} to {aligned(predicted.epoch_s * confirmed.high)}"
        yield "Your own plan", between, f"an epoch, by the confirmation; {result.doubt}"
    elif own is not None and result.plan != result.baseline:
        yield "Your own plan", aligned(own), f"an epoch, {'by the confirmation' if confirmed else 'as first measured'}"


def _plans(result: CalibrationResult) -> Iterator[tuple[str, ...]]:
    for name, own, chosen in compare_plans(result.baseline, result.plan):
        yield name, own, chosen if own == chosen else Markup('<span class="changed">● {}</span>').format(chosen)


def _memory(result: CalibrationResult) -> Row:
    fit = result.memory
    if fit is None:
        return ("Not measured.",)
    chosen = f"chosen was {result.plan.micro_batch:,}."
    if not fit.max_feasible:
        largest = f"No micro-batch is known to fit; {chosen}"
    else:
        cap = ", the whole batch" if fit.capped else ""
        largest = f"The largest micro-batch known to fit is {fit.max_feasible:,}{cap}; {chosen}"
    return (
        largest,
        f"By the fitted line, a process takes {numbers.size(fit.base_bytes)} and {numbers.size(fit.sample_bytes)} more "
        f"for each sample; its limit is {numbers.size(fit.budget_bytes)}.",
    )


def _probes(fit: MemoryFit) -> Iterator[Row]:
    for probe in fit.probes:
        predicted, measured = (
            numbers.NONE if value is None else numbers.size(value)
            for value in (probe.predicted_bytes, probe.peak_bytes)
        )
        why = f"{OUTCOMES[probe.outcome]} ({PHASES[probe.phase]})"
        yield f"{probe.micro_batch:,}", predicted, measured, probe.outcome, why


def _batch(trial: BatchTrial) -> Row:
    """Return an effective batch: size, micro-batch, speed, samples/s, epoch, memory, note."""

    def shown(value: float | None, words: Callable[[float], str]) -> str:
        return numbers.NONE if value is None else words(value)

    return (
        f"{trial.batch_size:,}", f"{trial.micro_batch:,}", shown(trial.ratio, numbers.ratio),
        shown(trial.samples_per_s, numbers.number), shown(trial.epoch_s, numbers.seconds),
        shown(trial.peak_bytes, numbers.size), trial.note or ("the job's own" if trial.outcome == "own" else ""),
    )  # fmt: skip


def _effort(result: CalibrationResult) -> Iterator[Row]:
    verdicts = [trial.verdict for trial in result.trials if trial.ran]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in MEANINGS if verdict in verdicts)
    late = sum(not trial.reached for trial in result.trials)
    worthless = len(result.trials) - len(verdicts) - late
    yield "Wall time", numbers.seconds(result.calibration_seconds)
    yield "Of it, starting processes and importing torch", numbers.seconds(result.import_seconds)
    if result.advice:
        yield "Of it, larger batches", numbers.seconds(result.advice.seconds)
    yield "Time allowed for measuring, starts apart", numbers.seconds(result.budget_s)
    yield "Steps for each plan", f"{result.samples:,}"
    yield "Trials", f"{len(verdicts):,}" + (f" ({counts})" if counts else "")
    if worthless:
        yield "Plans not worth a measurement", f"{worthless:,}"
    if late:
        yield "Plans not reached before the search ended", f"{late:,}"
    yield "Samples in an optimizer step", f"{result.batch_size:,}"
    yield "Optimizer steps in an epoch", f"{result.steps_per_epoch:,}"
