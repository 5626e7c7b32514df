"""Explanation of a plan, for `preflight calibrate --explain`."""

from collections.abc import Iterator
from typing import Final

from calibration.choose import PlanChoice
from calibration.result import BatchAdvice, BatchTrial, CalibrationResult, MemoryFit, MemoryProbe, Trial
from calibration.verdicts import batch_sentence, confirmed_speed, explain_trial, verdict_word
from preflight.cli.formatting.text import columns
from preflight.container.resources import Resources
from preflight.contract.spec import TrainSpec
from preflight.contract.verdicts import ADOPTED, OUTCOMES, PHASES, proof
from preflight.events.plan_words import changes, whole_plan_line
from preflight.events.sentences import as_sentence
from preflight.numbers import MIB, memory, plural, rough_interval
from worker.cli.formatting.choices import format_cost
from worker.cli.formatting.plans import format_prediction
from worker.jobs.stages.payloads import choice_facts

LABEL_WIDTH: Final = 13


def explain_choice(choice: PlanChoice, spec: TrainSpec, resources: Resources) -> str:
    """Return everything that led to a choice: container, trials, memory, confirmation, prediction."""
    head = _labelled(list(choice_facts(choice, spec, resources).items()))
    finding = choice.finding
    rest = (
        _explain(choice, finding)
        if finding
        else _labelled([("plan", whole_plan_line(choice.plan)), ("why", choice.why)])
    )
    return f"{head}\n{rest}"


def _explain(choice: PlanChoice, finding: CalibrationResult) -> str:
    head = ("TRIED", "CHANGE", "SPEED", "95 %", "S/EPOCH", "VERDICT", "WHY")
    prediction = choice.prediction or finding.prediction
    facts = _labelled(
        [
            *_memory(finding.memory), ("confirmed", _confirmation(finding)),
            ("plan", whole_plan_line(choice.plan)), ("why", finding.why if choice.cache == "miss" else
                f"{choice.why}: {finding.why}"), ("predicted", format_prediction(prediction)),
            ("confidence", f"{finding.confidence}{f': {finding.doubt}' if finding.doubt else ''}"),
            ("took", format_cost(choice)),
        ]
    )  # fmt: skip
    tables = [columns([head, *_trials(finding)]), *_skipped(finding)]
    advice = _advice(finding.advice) if finding.advice else ()
    return "\n\n".join([_labelled([("your plan", whole_plan_line(finding.baseline))]), *tables, facts, *advice])


def _trials(finding: CalibrationResult) -> Iterator[tuple[str, ...]]:
    """Yield a row for each trial that was run, with its changes from the best plan before it, and the confirmation."""
    best = finding.baseline
    for trial in finding.trials:
        if trial.ran:
            yield (
                trial.knob, "" if trial.knob == "own" else changes(best, trial.plan),
                *_speed(trial.ratio, trial.low, trial.high, sure=not trial.disturbed),
                "" if trial.predicted_epoch_s is None else f"{trial.predicted_epoch_s:.2f}",
                trial.verdict, _reason(trial),
            )  # fmt: skip
        if trial.verdict in ADOPTED:
            best = trial.plan
    if (found := finding.confirmation) is not None:
        yield (
            "confirmed" if found.fresh_process else "together", changes(finding.baseline, best),
            *_speed(found.ratio, found.low, found.high, sure=finding.confidence == "high"),
            f"{finding.prediction.epoch_s:.2f}" if found.proven else "", "won" if found.proven else "level",
            f"{proof(found.fresh_process)}, against your plan ({_own_there(finding)}{plural(found.pairs, 'pair')})",
        )  # fmt: skip


def _own_there(finding: CalibrationResult) -> str:
    """Return the seconds of an epoch under the user's plan by the confirmation, from which the ratio comes."""
    found = finding.confirmation
    sure = found is not None and found.proven and not finding.doubt
    return f"{finding.prediction.epoch_s * found.ratio:.2f} s an epoch, " if found and sure else ""


def _speed(ratio: float | None, low: float | None, high: float | None, *, sure: bool) -> tuple[str, str]:
    """Return the cells of a ratio and its interval; of an unsure one only the interval is known."""
    if ratio is None:
        return "", ""
    if low is None or high is None:
        return f"{ratio:.2f}x", ""
    return (f"{ratio:.2f}x", f"{low:.2f} to {high:.2f}") if sure else ("unsure", rough_interval(low, high, ""))


def _skipped(finding: CalibrationResult) -> Iterator[str]:
    """Yield the plans that were not run: those that were not worth it, and those whose turn did not come."""
    best, rows = finding.baseline, []
    for trial in finding.trials:
        if not trial.ran:
            rows.append((verdict_word(trial), trial.knob, changes(best, trial.plan), trial.note))
        elif trial.verdict in ADOPTED:
            best = trial.plan
    if rows:
        yield columns([("NOT RUN", "KNOB", "CHANGE", "WHY"), *sorted(rows, key=lambda row: row[0])])


def _reason(trial: Trial) -> str:
    """Return why a trial won or lost, and notes on its figures."""
    notes = [
        *([plural(trial.steps, "step")] if trial.steps else []),
        *([memory(trial.peak_bytes)] if trial.peak_bytes is not None else []),
        *(["disturbed"] if trial.disturbed else []),
        *(["measured earlier"] if trial.kept else []),
    ]
    return explain_trial(trial) + (f" ({', '.join(notes)})" if notes else "")


def _memory(fit: MemoryFit | None) -> Iterator[tuple[str, str]]:
    if fit is None:
        yield "memory", "not measured"
        return
    model = f"{memory(fit.base_bytes)} + {fit.sample_bytes / MIB:,.3f} MiB per sample of the micro-batch"
    yield "memory", f"{model}; the limit of a training process is {memory(fit.budget_bytes)}"
    for probe in fit.probes:
        yield "", f"{PHASES[probe.phase]:20}  micro-batch {probe.micro_batch:6}  {_probe(probe)}"
    whole = ", the whole batch" if fit.capped else ""
    yield "", f"Largest micro-batch that fits: {fit.max_feasible}{whole}"


def _probe(probe: MemoryProbe) -> str:
    figures = [
        f"{word} {memory(value)}"
        for word, value in (("predicted", probe.predicted_bytes), ("measured", probe.peak_bytes))
        if value is not None
    ]
    return ", ".join([*figures, OUTCOMES[probe.outcome]])


def _confirmation(finding: CalibrationResult) -> str:
    found = finding.confirmation
    if found is None:
        won = any(trial.verdict in ADOPTED for trial in finding.trials)
        return f"nothing: {finding.why if won else 'no other plan had won'}"
    proven = "proven" if not finding.doubt else "taken, and measured again after an hour"
    proven = proven if found.proven else "not proven faster, your own plan stays"
    speed = confirmed_speed(found, finding.doubt)
    return f"{speed} compared with your plan {proof(found.fresh_process)}, {plural(found.pairs, 'pair')}: {proven}"


def _advice(advice: BatchAdvice) -> Iterator[str]:
    """Yield a table of the effective batches that were considered, and the advice."""
    head = ("BATCH", "MICRO-BATCH", "SPEED", "95 %", "SAMPLES/S", "S/EPOCH", "MEMORY", "WHY")
    yield columns([head, *map(_batch_row, advice.trials)])
    yield _labelled([("batch", as_sentence(batch_sentence(advice)))])


def _batch_row(trial: BatchTrial) -> tuple[str, ...]:
    own = "the job's own" if trial.outcome == "own" else ""
    return (
        f"{trial.batch_size:,}", f"{trial.micro_batch:,}",
        "" if trial.ratio is None else f"{trial.ratio:.2f}x",
        "" if trial.low is None or trial.high is None else f"{trial.low:.2f}-{trial.high:.2f}",
        "" if trial.samples_per_s is None else f"{trial.samples_per_s:,.0f}",
        "" if trial.epoch_s is None else f"{trial.epoch_s:.2f}",
        "" if trial.peak_bytes is None else memory(trial.peak_bytes), trial.note or own,
    )  # fmt: skip


def _labelled(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(f"{label:{LABEL_WIDTH}}{text}" for label, text in pairs)
