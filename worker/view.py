"""What a person reads: events, results and jobs as text."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from pydantic import JsonValue

from calibration.choose import Choice
from training.plan import Plan
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
    PlanFields,
    Progress,
    ResourceLimits,
    TrainingDone,
    TrainResult,
)

CANCELLED_CODE: Final = 3
"""Exit code of `watch` and `enqueue --wait` for a job that was cancelled; a failed one's is 1."""


def describe(event: AnyEvent | JobWarning) -> str | None:
    """Return the event as one line, or None for one that a person can do without."""
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
            faster = "" if event.ratio is None else f"{event.ratio:.2f}x"
            return (
                f"trial     {event.samples_per_s:8,.0f} samples/s {faster:6} {plan_line(event)} {event.note}".rstrip()
            )
        case CalibrationWinner():
            predicted = (
                "" if event.predicted_epoch_s is None else f", {event.predicted_epoch_s:.1f} s an epoch predicted"
            )
            return f"plan      {plan_line(event)} ({event.why}{predicted})"
        case Progress():
            return (
                f"train     epoch {event.epoch}/{event.epochs} step {event.step}/{event.steps} loss {event.loss:.4f} "
                f"accuracy {event.accuracy:.1%} {event.samples_per_s:,.0f} samples/s {event.eta_s:.0f} s left"
            )
        case EpochDone():
            accuracy = "" if event.val_acc is None else f" validation {event.val_acc:.2%}"
            return f"epoch     {event.epoch} loss {event.loss:.4f}{accuracy} in {event.seconds:.1f} s"
        case TrainingDone():
            return (
                f"done      test accuracy {event.test_accuracy:.2%}, {event.samples_per_s:,.0f} samples/s, "
                f"model in {event.artifact}"
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
    return f"{threads} {plan.precision} {plan.memory_format} {plan.allocator} malloc micro-batch {plan.micro_batch}"


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
    predicted = "unmeasured" if result.predicted_epoch_s is None else f"{result.predicted_epoch_s:.2f} s"
    return "\n".join(
        [
            f"test accuracy  {result.test_accuracy:.2%}",
            f"training       {result.train_seconds:.1f} s, {result.samples_per_s:,.0f} samples/s",
            f"epoch          predicted {predicted}, measured {result.measured_epoch_s:.2f} s",
            f"plan           {plan_line(result.plan) if result.plan else ''}",
            f"model          {result.artifact}",
        ]
    )


def table(states: Sequence[JobState]) -> str:
    """Return jobs as aligned columns."""
    if not states:
        return "no jobs"
    rows = [("JOB", "STATUS", "AGE", "EPOCH", "ACCURACY", "WHY")]
    rows.extend(_row(state) for state in states)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(state: JobState) -> tuple[str, str, str, str, str, str]:
    age = "" if state.updated_at is None else f"{max(0.0, time.time() - state.updated_at):.0f}s"
    epoch = "" if state.epoch is None else f"{state.epoch}/{state.epochs or '?'}"
    accuracy = state.test_accuracy if state.test_accuracy is not None else state.val_acc
    return (
        state.job_id, state.status, age, epoch, "" if accuracy is None else f"{accuracy:.2%}", state.reason or "",
    )  # fmt: skip


def choice_as_text(choice: Choice, trials: Sequence[CalibrationTrial]) -> str:
    """Return a choice, and what was measured for it, in a few lines."""
    lines = [
        f"{'won ' if trial.won else '    '} {trial.predicted_epoch_s:8.2f} s/epoch "
        f"{trial.samples_per_s:10,.0f} samples/s  {plan_line(trial)}{'  ' + trial.note if trial.note else ''}"
        for trial in trials
    ]
    predicted = "not measured" if choice.predicted_epoch_s is None else f"{choice.predicted_epoch_s:.2f} s an epoch"
    return "\n".join(
        [
            *lines,
            f"plan       {plan_line(choice.plan)}",
            f"why        {choice.why}",
            f"predicted  {predicted}",
            f"took       {choice.calibration_seconds:.1f} s, and {choice.import_seconds:.1f} s to import torch",
        ]
    )


def choice_as_json(choice: Choice, trials: Sequence[CalibrationTrial]) -> str:
    """Return a choice, and what was measured for it, as one JSON object."""
    fields: dict[str, JsonValue] = {
        **asdict(choice),
        "trials": [trial.model_dump(mode="json", exclude={"v", "type", "job_id", "attempt"}) for trial in trials],
    }
    return json.dumps(fields)
