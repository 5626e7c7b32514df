"""Explanation of a plan, for `preflight calibrate --explain`."""

from collections.abc import Iterator
from typing import Final

from calibration.choose import PlanChoice
from calibration.result import (
    ADOPTED,
    BatchAdvice,
    BatchTrial,
    CalibrationResult,
    Confirmation,
    MemoryFit,
    MemoryProbe,
    Trial,
)
from calibration.verdicts import OUTCOMES, PHASES, batch_sentence, explain_trial
from training.config.spec import TrainSpec
from training.system.resources import Resources
from worker.cli.formatting.plans import changes, format_prediction
from worker.cli.formatting.text import MIB, columns
from worker.events.plan_words import plan_line
from worker.events.sentences import as_sentence
from worker.report.facts import facts
from worker.report.numbers import plural

LABEL_WIDTH: Final = 13


def explain_choice(choice: PlanChoice, spec: TrainSpec, resources: Resources) -> str:
    """Return everything that led to a choice: container, trials, memory, confirmation, prediction."""
    head = _labelled(list(facts(choice, spec, resources).items()))
    finding = choice.finding
    rest = _explain(finding) if finding else _labelled([("plan", plan_line(choice.plan)), ("why", choice.why)])
    return f"{head}\n{rest}"


def _explain(finding: CalibrationResult) -> str:
    batches_s = finding.advice.seconds if finding.advice else 0.0
    took = (
        f"{max(0.0, finding.calibration_seconds - batches_s):.1f} s of {finding.budget_s:.0f} s allowed, "
        f"{f'{batches_s:.1f} s for larger batches, ' if finding.advice else ''}and "
        f"{finding.import_seconds:.1f} s to import torch"
    )
    head = ("TRIED", "CHANGE", "SPEED", "95 %", "S/EPOCH", "VERDICT", "WHY")
    return "\n".join(
        [
            _labelled([("your plan", plan_line(finding.baseline))]), "", columns([head, *_trials(finding)]), "",
            _labelled(
                [
                    *_memory(finding.memory), ("confirmed", _confirmation(finding.confirmation)),
                    ("plan", plan_line(finding.plan)), ("why", finding.why),
                    ("predicted", format_prediction(finding.prediction)), ("confidence", finding.confidence),
                    ("took", took),
                ]
            ),
            *(_advice(finding.advice) if finding.advice else ()),
        ]
    )  # fmt: skip


def _trials(finding: CalibrationResult) -> Iterator[tuple[str, ...]]:
    """Yield a row for each trial, with its changes from the best plan before it."""
    best = finding.baseline
    for trial in finding.trials:
        yield (
            trial.knob, "" if trial.knob == "own" else changes(best, trial.plan),
            "" if trial.ratio is None else f"{trial.ratio:.2f}x",
            "" if trial.low is None or trial.high is None else f"{trial.low:.2f}-{trial.high:.2f}",
            "" if trial.predicted_epoch_s is None else f"{trial.predicted_epoch_s:.2f}",
            trial.verdict, _reason(trial),
        )  # fmt: skip
        if trial.verdict in ADOPTED:
            best = trial.plan


def _reason(trial: Trial) -> str:
    """Return why a trial won or lost, and notes on its figures."""
    notes = [
        *([plural(trial.steps, "step")] if trial.steps else []),
        *([f"{trial.peak_bytes / MIB:,.0f} MiB"] if trial.peak_bytes is not None else []),
        *(["disturbed"] if trial.disturbed else []),
        *(["measured by an earlier calibration"] if trial.kept else []),
    ]
    return explain_trial(trial) + (f" ({', '.join(notes)})" if notes else "")


def _memory(memory: MemoryFit | None) -> Iterator[tuple[str, str]]:
    if memory is None:
        yield "memory", "not measured"
        return
    model = f"{memory.base_bytes / MIB:,.0f} MiB + {memory.sample_bytes / MIB:,.3f} MiB per sample of the micro-batch"
    yield "memory", f"{model}; the limit of a training process is {memory.budget_bytes / MIB:,.0f} MiB"
    for probe in memory.probes:
        yield "", f"{PHASES[probe.phase]:20}  micro-batch {probe.micro_batch:6}  {_probe(probe)}"
    most = ", the whole batch" if memory.capped else ""
    yield "max_feasible", f"micro-batch {memory.max_feasible}{most}"


def _probe(probe: MemoryProbe) -> str:
    figures = [
        f"{word} {value / MIB:,.0f} MiB"
        for word, value in (("predicted", probe.predicted_bytes), ("measured", probe.peak_bytes))
        if value is not None
    ]
    return ", ".join([*figures, OUTCOMES[probe.outcome]])


def _confirmation(confirmation: Confirmation | None) -> str:
    if confirmation is None:
        return "nothing: your own plan was the fastest, or the time budget was used up"
    proven = "proven" if confirmation.proven else "not proven, your own plan stays"
    return (
        f"{confirmation.ratio:.2f}x ({confirmation.low:.2f}-{confirmation.high:.2f}) against your plan in a fresh "
        f"process, {plural(confirmation.pairs, 'pair')}: {proven}"
    )


def _advice(advice: BatchAdvice) -> Iterator[str]:
    """Yield a table of the effective batches that were considered, and the advice."""
    head = ("BATCH", "MICRO-BATCH", "SPEED", "95 %", "SAMPLES/S", "S/EPOCH", "MEMORY", "WHY")
    yield ""
    yield columns([head, *map(_batch_row, advice.trials)])
    yield ""
    yield _labelled([("batch", as_sentence(batch_sentence(advice)))])


def _batch_row(trial: BatchTrial) -> tuple[str, ...]:
    own = "the job's own" if trial.outcome == "own" else ""
    return (
        f"{trial.batch_size:,}", f"{trial.micro_batch:,}",
        "" if trial.ratio is None else f"{trial.ratio:.2f}x",
        "" if trial.low is None or trial.high is None else f"{trial.low:.2f}-{trial.high:.2f}",
        "" if trial.samples_per_s is None else f"{trial.samples_per_s:,.0f}",
        "" if trial.epoch_s is None else f"{trial.epoch_s:.2f}",
        "" if trial.peak_bytes is None else f"{trial.peak_bytes / MIB:,.0f} MiB", trial.note or own,
    )  # fmt: skip


def _labelled(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(f"{label:{LABEL_WIDTH}}{text}" for label, text in pairs)
