"""Why a plan was chosen, as text: from what was measured now, or from what the cache kept of it."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from calibration.choose import Choice
from calibration.result import Confirmation, Finding, MemoryFit, MemoryProbe, Trial
from training.config.plan import Plan
from training.config.spec import TrainSpec
from training.system.resources import Resources
from worker.cli.formatting.choices import ago, columns, plan_line, predicted

MIB: Final = 1 << 20
INDENT: Final = " " * 13
"""Where the text begins beside the words at the margin."""

WHY: Final = {
    "own": "your own plan, measured first",
    "won": "surely faster",
    "level": "not proven faster",
    "lost": "slower",
    "dropped": "surely slower, given up early",
    "rejected": "its gradients differ",
    "failed": "its process was killed or broke",
    "skipped": "never run",
}
"""Verdict -> what it means, where the trial itself gives no reason."""


def facts(choice: Choice, spec: TrainSpec, resources: Resources) -> dict[str, str]:
    """Return what a choice was made for, and where: the head of an explanation and of a report."""
    quota = "no quota" if resources.quota is None else f"quota {resources.quota:g}"
    age = "" if choice.cache_age_s is None else f", measured {ago(choice.cache_age_s)} ago"
    return {
        "processors": f"{resources.cores} core(s), {quota} ({resources.cores_source})",
        "memory limit": f"{resources.memory_bytes / MIB:,.0f} MiB ({resources.memory_source})",
        "training": f"{spec.model} on {spec.dataset}, {spec.epochs} epoch(s), batch {spec.batch_size}",
        "cache": f"{choice.cache}{age}",
    }


def explain_choice(choice: Choice, spec: TrainSpec, resources: Resources) -> str:
    """Return everything that led to a choice, in the order in which it was found out."""
    head = _lines(list(facts(choice, spec, resources).items()))
    finding = choice.finding
    rest = explain_finding(finding) if finding else _lines([("plan", plan_line(choice.plan)), ("why", choice.why)])
    return f"{head}\n{rest}"


def explain_finding(finding: Finding) -> str:
    """Return what a calibration found out: trials, memory, confirmation, prediction."""
    return "\n".join(
        [
            _lines([("your plan", plan_line(finding.baseline))]),
            "",
            columns([("TRIED", "WHAT", "SPEED", "95 %", "S/EPOCH", "VERDICT", "WHY"), *_tried(finding)]),
            "",
            _lines(
                [
                    *_memory(finding.memory),
                    ("confirmed", _confirmed(finding.confirmation)),
                    ("plan", plan_line(finding.plan)),
                    ("why", finding.why),
                    ("predicted", predicted(finding.prediction)),
                    ("confidence", finding.confidence),
                    ("took", f"{finding.calibration_seconds:.1f} s of {finding.budget_s:.0f} s allowed, and "
                             f"{finding.import_seconds:.1f} s to import torch"),
                ]
            ),
        ]
    )  # fmt: skip


def changes(before: Plan, after: Plan) -> str:
    """Return in a few words what another plan does differently; `as before` where nothing is."""
    old = asdict(before)
    changed = {name: value for name, value in asdict(after).items() if value != old[name]}
    return ", ".join(_words(name, value) for name, value in changed.items()) or "as before"


def _words(name: str, value: object) -> str:
    match name, value:
        case "threads" | "loader_workers", int(number):
            return f"{number} {name.replace('_', ' ')[:-1]}{'' if number == 1 else 's'}"
        case "compile", bool(on):
            return "compiled" if on else "not compiled"
        case "allocator", str(which):
            return f"{which} malloc"
        case "precision" | "memory_format" | "affinity", str(which):
            return which
    return f"{name.replace('_', '-')} {value}"


def _tried(finding: Finding) -> Iterator[tuple[str, ...]]:
    """Yield a row for each trial; what it changed is told against the plan that was best until then."""
    best = finding.baseline
    for trial in finding.trials:
        what = "" if trial.knob == "own" else changes(best, trial.plan)
        yield (
            trial.knob, what,
            "" if trial.ratio is None else f"{trial.ratio:.2f}x",
            "" if trial.low is None or trial.high is None else f"{trial.low:.2f}-{trial.high:.2f}",
            "" if trial.predicted_epoch_s is None else f"{trial.predicted_epoch_s:.2f}",
            trial.verdict, _reason(trial),
        )  # fmt: skip
        if trial.verdict == "won":
            best = trial.plan


def _reason(trial: Trial) -> str:
    """Return why a trial won or lost, and what is to be known of its figures."""
    asides = [
        *([f"{trial.steps} steps"] if trial.steps else []),
        *([f"{trial.peak_bytes / MIB:,.0f} MiB"] if trial.peak_bytes is not None else []),
        *(["disturbed"] if trial.disturbed else []),
        *(["measured by an earlier calibration"] if trial.kept else []),
    ]
    return (trial.note or WHY[trial.verdict]) + (f" ({', '.join(asides)})" if asides else "")


def _memory(memory: MemoryFit | None) -> Iterator[tuple[str, str]]:
    if memory is None:
        yield "memory", "not looked at"
        return
    yield (
        "memory",
        (
            f"{memory.base_bytes / MIB:,.0f} MiB + {memory.sample_bytes / MIB:,.3f} MiB a sample of the micro-batch; "
            f"a training process may have {memory.budget_bytes / MIB:,.0f} MiB"
        ),
    )
    for probe in memory.probes:
        yield "", f"{probe.phase:4}  micro-batch {probe.micro_batch:6}  {_probed(probe)}"
    most = ", the whole effective batch: more would not be asked for" if memory.capped else ""
    yield "max_feasible", f"micro-batch {memory.max_feasible}{most}"


def _probed(probe: MemoryProbe) -> str:
    figures = [
        f"{word} {value / MIB:,.0f} MiB"
        for word, value in (("predicted", probe.predicted_bytes), ("measured", probe.peak_bytes))
        if value is not None
    ]
    return ", ".join([*figures, probe.outcome])


def _confirmed(confirmation: Confirmation | None) -> str:
    if confirmation is None:
        return "nothing: your own plan was not beaten, or time ran out"
    proven = "proven" if confirmation.proven else "not proven, your own plan stays"
    return (
        f"{confirmation.ratio:.2f}x ({confirmation.low:.2f}-{confirmation.high:.2f}) against your plan in a fresh "
        f"process, {confirmation.pairs} pairs: {proven}"
    )


def _lines(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(f"{word:{len(INDENT)}}{text}" for word, text in pairs)
