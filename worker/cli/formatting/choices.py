"""What a person reads: events, results and jobs as text."""

import json
import time
from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue, TypeAdapter

from calibration.cache.plan_cache import Listed
from calibration.choose import Choice
from calibration.result import Finding, Trial
from training.config.plan import Plan
from training.loop.prediction import Prediction
from training.loop.profiler import PHASES
from worker.queue.quarantine import printable
from worker.wire import (
    AnyEvent,
    CalibrationTrial,
    CalibrationWinner,
    DatasetReady,
    EpochDone,
    JobCancelled,
    JobFailed,
    JobInterrupted,
    JobResumed,
    JobStarted,
    JobState,
    JobWarning,
    MemoryRanOut,
    PlanAdapted,
    PlanFields,
    PredictionChecked,
    Progress,
    ResourceLimits,
    StepProfile,
    TrainingDone,
    TrainingProfile,
    TrainResult,
)

CANCELLED_CODE: Final = 3
"""Exit code of `watch` and `enqueue --wait` for a job that was cancelled; a failed one's is 1."""
SHOWN_KEY: Final = 12
"""Characters of a key that are listed: enough to tell thousands apart."""

FINDING = TypeAdapter(Finding)
PLAN = TypeAdapter(Plan)


def describe(event: AnyEvent) -> str | None:
    """Return the event as one line that no terminal acts on, or None for one that a person can do without."""
    line = _line(event)
    return None if line is None else printable(line)


def _line(event: AnyEvent) -> str | None:
    match event:
        case JobStarted():
            return (
                f"started   {event.model} on {event.dataset}, {event.epochs} epoch(s), batch {event.batch_size}, "
                f"attempt {event.attempt}"
            )
        case ResourceLimits():
            quota = "" if event.quota is None else f" (quota {event.quota:g})"
            return f"container {event.cpu_cores} core(s){quota}, {event.memory_mb} MiB"
        case DatasetReady():
            return f"data      {event.dataset}: {event.train_samples} training, {event.test_samples} test samples"
        case CalibrationTrial():
            speed = "" if event.samples_per_s is None else f"{event.samples_per_s:,.0f} samples/s"
            faster = "" if event.ratio is None else f"{event.ratio:.2f}x"
            verdict = event.verdict or ("won" if event.won else "")
            return f"trial     {speed:>18} {faster:6} {verdict:8} {plan_line(event)} {event.note}".rstrip()
        case CalibrationWinner():
            seconds = "" if event.predicted_epoch_s is None else f", {event.predicted_epoch_s:.1f} s an epoch predicted"
            return f"plan      {plan_line(event)} ({event.why}{seconds})"
        case Progress():
            return (
                f"train     epoch {event.epoch}/{event.epochs} step {event.step}/{event.steps} loss {event.loss:.4f} "
                f"accuracy {event.accuracy:.1%} {event.samples_per_s:,.0f} samples/s {event.eta_s:.0f} s left"
            )
        case EpochDone():
            accuracy = "" if event.val_acc is None else f" validation {event.val_acc:.2%}"
            return f"epoch     {event.epoch} loss {event.loss:.4f}{accuracy} in {event.seconds:.1f} s"
        case PredictionChecked():
            what = f"epoch {event.epoch}" if event.whole else f"first {event.steps} steps"
            why = f", {event.cause}: {event.seen}" if event.cause else ""
            return (
                f"measured  {what} {event.measured_s:.2f} s, predicted {event.predicted_s:.2f} s "
                f"({event.low_s:.2f}-{event.high_s:.2f}), {1e3 * event.measured_batch_s:.2f} and "
                f"{1e3 * event.predicted_batch_s:.2f} ms a step: {event.deviation:+.1%}{why}"
            )
        case PlanAdapted():
            return f"adapted   {event.field} {event.before} -> {event.after}: {event.reason}"
        case TrainingProfile():
            phases = " ".join(f"{phase} {1e3 * batch_s:.2f}" for phase, batch_s, _ in phases_of(event))
            return f"profile   {1e3 * event.average_batch_s:.2f} ms a step: {phases}"
        case TrainingDone():
            return (
                f"done      test accuracy {event.test_accuracy:.2%}, {event.samples_per_s:,.0f} samples/s, "
                f"model in {event.artifact}{f' and {event.artifact_url}' if event.artifact_url else ''}"
            )
        case JobFailed():
            return f"failed    {event.reason}: {event.message}"
        case JobResumed():
            return f"resumed   after epoch {event.epochs_done} step {event.steps_done}, from a checkpoint"
        case MemoryRanOut():
            return f"memory    {event.message}"
        case JobInterrupted():
            return f"stopped   {event.message}"
        case JobCancelled():
            return f"cancelled {event.message}"
        case JobWarning():
            return f"warning   {event.message}"
    return None


def plan_line(plan: PlanFields | Plan) -> str:
    """Return a plan in a few words."""
    threads = "1 thread" if plan.threads == 1 else f"{plan.threads} threads"
    workers = f" {plan.loader_workers} loader worker(s)" if plan.loader_workers else ""
    compiled, place = " compiled" if plan.compile else "", " on cuda" if plan.device == "cuda" else ""
    rest = f"{' pinned' if plan.affinity == 'pinned' else ''}{workers}{compiled}{place}"
    return (
        f"{threads} {plan.precision} {plan.memory_format} {plan.allocator} malloc micro-batch {plan.micro_batch}{rest}"
    )


def outcome(last: AnyEvent | None) -> int:
    """Return the exit code that mirrors a job's last event."""
    match last:
        case TrainingDone():
            return 0
        case JobCancelled():
            return CANCELLED_CODE
    return 1


def summary(result: TrainResult) -> str:
    """Return a result in a few lines."""
    if result.test_accuracy is None:
        return f"{result.job_id} {result.status}"
    expected = "unmeasured" if result.predicted_epoch_s is None else f"{result.predicted_epoch_s:.2f} s"
    return "\n".join(
        [
            f"test accuracy  {result.test_accuracy:.2%}",
            f"training       {result.train_seconds:.1f} s, {result.samples_per_s:,.0f} samples/s",
            f"epoch          predicted {expected}, measured {result.measured_epoch_s:.2f} s",
            f"plan           {plan_line(result.plan) if result.plan else ''}",
            f"model          {result.artifact}",
            *([f"uploaded       {result.artifact_url}"] if result.artifact_url else []),
            *([f"onnx           {result.onnx}"] if result.onnx else []),
            *([f"report         {result.report}"] if result.report else []),
            *(["", profile_table(result.profile)] if result.profile else []),
        ]
    )


def phases_of(profile: StepProfile) -> list[tuple[str, float, float]]:
    """Return each phase with its seconds a step and its share of all."""
    seconds = {phase: float(getattr(profile, f"{phase}_s")) for phase in PHASES}
    steps, total = max(1, profile.steps), max(profile.total_s, 1e-9)
    return [(phase, spent / steps, spent / total) for phase, spent in seconds.items()]


def profile_table(profile: StepProfile) -> str:
    """Return where the time went, as aligned columns."""
    rows = [(phase, f"{1e3 * batch_s:.3f}", f"{share:.1%}") for phase, batch_s, share in phases_of(profile)]
    whole = ("all", f"{1e3 * profile.average_batch_s:.3f}", f"of {profile.total_s:.2f} s in {profile.steps} steps")
    return columns([("PHASE", "MS A STEP", "SHARE"), *rows, whole])


def table(states: Sequence[JobState]) -> str:
    """Return jobs as aligned columns."""
    if not states:
        return "no jobs"
    head = ("JOB", "STATUS", "AGE", "TOOK", "EPOCH", "ACCURACY", "WHY")
    return columns([head, *(_row(state, time.time()) for state in states)])


def columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows of equally many cells as lines, their columns aligned."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(state: JobState, now: float) -> tuple[str, ...]:
    """Return a job's cells: its age since it was last heard of, and how long its newest attempt took until then."""
    age = "" if state.updated_at is None else ago(now - state.updated_at)
    epoch = "" if state.epoch is None else f"{state.epoch}/{state.epochs or '?'}"
    accuracy = state.test_accuracy if state.test_accuracy is not None else state.val_acc
    return (
        state.job_id, state.status, age, _took(state, now), epoch, "" if accuracy is None else f"{accuracy:.2%}",
        printable(state.reason or ""),
    )  # fmt: skip


def _took(state: JobState, now: float) -> str:
    if state.started_at is None:
        return ""
    until = now if state.status == "running" else state.updated_at or now
    return ago(until - state.started_at)


def choice_as_text(choice: Choice) -> str:
    """Return a choice, and what was measured for it, in a few lines; `explanation` has them all."""
    finding = choice.finding
    lines = [_trial_line(trial) for trial in finding.trials] if finding else []
    seconds = "not measured" if choice.predicted_epoch_s is None else f"{choice.predicted_epoch_s:.2f} s an epoch"
    expected = predicted(finding.prediction) if finding else seconds
    confidence = f", confidence {finding.confidence}" if finding else ""
    return "\n".join(
        [
            *lines,
            f"plan       {plan_line(choice.plan)}",
            f"why        {choice.why}",
            f"predicted  {expected}{confidence}",
            f"took       {choice.calibration_seconds:.1f} s, and {choice.import_seconds:.1f} s to import torch",
        ]
    )


def _trial_line(trial: Trial) -> str:
    seconds = "" if trial.predicted_epoch_s is None else f"{trial.predicted_epoch_s:.2f} s/epoch"
    faster = "" if trial.ratio is None else f"{trial.ratio:.2f}x"
    return f"{trial.verdict:8} {seconds:>14} {faster:>6}  {plan_line(trial.plan)}  {trial.note}".rstrip()


def predicted(prediction: Prediction) -> str:
    """Return what an epoch will take, with its interval and its parts."""
    parts = [
        *([f"{prediction.validation_s:.2f} s of it validation"] if prediction.validation_s else []),
        *([f"{prediction.warm_s:.2f} s more in the first one"] if prediction.warm_s else []),
    ]
    interval = f"{prediction.epoch_s:.2f} s an epoch ({prediction.low_s:.2f}-{prediction.high_s:.2f})"
    return ", ".join([interval, *parts])


def choice_as_json(choice: Choice) -> str:
    """Return a choice, and everything that led to it, as one JSON object."""
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


def cache_table(entries: Sequence[Listed]) -> str:
    """Return what the plan cache holds as aligned columns."""
    if not entries:
        return "no plans"
    head = ("KEY", "DATASET", "MODEL", "BATCH", "S/EPOCH", "CONFIDENCE", "AGE", "EXPIRES IN", "PLAN")
    return columns([head, *(_cached(entry) for entry in entries)])


def _cached(entry: Listed) -> tuple[str, ...]:
    key, kept = ascii(entry.key[:SHOWN_KEY])[1:-1], entry.plan
    if kept is None:
        return (key, "", "", "", "", "", "", "", f"cannot serve: it {entry.fault}")
    what = (ascii(str(kept.what.get(name)))[1:-1] for name in ("dataset", "model", "batch_size"))
    return (
        key, *what, f"{kept.finding.prediction.epoch_s:.2f}", kept.finding.confidence, ago(kept.age_s),
        "expired" if kept.expired else ago(kept.lasts_s - kept.age_s), plan_line(kept.finding.plan),
    )  # fmt: skip


def cached_as_json(entry: Listed) -> str:
    """Return an entry of the plan cache as one JSON object, without the trials that led to it."""
    fields: dict[str, JsonValue] = {"key": entry.key, "path": str(entry.path), "fault": entry.fault}
    kept = entry.plan
    if kept is not None:
        fields |= {
            **kept.what,
            "plan": PLAN.dump_python(kept.finding.plan, mode="json"),
            "predicted_epoch_s": kept.finding.prediction.epoch_s,
            "confidence": kept.finding.confidence,
            "age_s": kept.age_s,
            "expires_in_s": max(0.0, kept.lasts_s - kept.age_s),
            "expired": kept.expired,
        }
    return json.dumps(fields)


def ago(seconds: float) -> str:
    """Return a time span in its largest unit that fills at least two of them, or in seconds."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
