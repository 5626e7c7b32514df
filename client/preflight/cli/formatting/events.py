"""Events as lines of text, and the exit code of the last one."""

from typing import Final

from preflight import wire
from preflight.cli.exit_codes import CANCELLED, FAILURE
from preflight.cli.formatting.text import printable
from preflight.contract.verdicts import DISTURBED, speedup
from preflight.events.plan_words import plan_line
from preflight.numbers import plural

MESSAGE_LABELS: Final = {
    "job_interrupted": "stopped", "job_cancelled": "cancelled", "warning": "warning", "out_of_memory": "memory",
    "group_formed": "group", "group_measured": "group", "group_changed": "group", "group_short": "waiting",
}  # fmt: skip
TOTALS: Final = ("total_s", "average_batch_s")
PHASES: Final = tuple(
    name.removesuffix("_s") for name in wire.StepProfile.model_fields if name.endswith("_s") and name not in TOTALS
)
"""Phases of a step, in the order in which a profile has their seconds."""


def format_event(event: wire.AnyEvent) -> str | None:
    """Return the event as one printable line; None for events that are only for machines."""
    line = _job_line(event) or _plan_line(event) or _training_line(event) or _extra_line(event)
    return None if line is None else printable(line)


def _job_line(event: wire.AnyEvent) -> str | None:
    match event:
        case wire.JobStarted():
            epochs = plural(event.epochs, "epoch")
            what = f"{event.model} on {event.dataset}, {epochs}, batch {event.batch_size}"
            return f"started   {what}, attempt {event.attempt}"
        case wire.JobResumed():
            done = f"{plural(event.epochs_done, 'epoch')} and {plural(event.steps_done, 'step')}"
            return f"resumed   from the checkpoint after {done}"
        case wire.JobFailed():
            return f"failed    {event.reason}: {event.message}"
        case wire.JobWarning() if event.rank is not None:
            return f"warning   of rank {event.rank}: {event.message}"
        case wire.JobInterrupted() | wire.JobCancelled() | wire.JobWarning() | wire.MemoryRanOut():
            return f"{MESSAGE_LABELS[event.type]:10}{event.message}"
        case wire.GroupFormed() | wire.GroupMeasured() | wire.GroupChanged() | wire.GroupShort():
            return f"{MESSAGE_LABELS[event.type]:10}{event.message}"
        case wire.ResourceLimits():
            quota = "" if event.quota is None else f" (quota {event.quota:g})"
            return f"container {plural(event.cpu_cores, 'core')}{quota}, {event.memory_mb} MiB"
        case wire.DatasetReady():
            return f"data      {event.dataset}: {event.train_samples} training, {event.test_samples} test samples"
    return None


def _plan_line(event: wire.AnyEvent) -> str | None:
    match event:
        case wire.CalibrationTrial() if event.verdict == "skipped":
            return None  # the winner counts them
        case wire.CalibrationTrial():
            doubt = DISTURBED if event.disturbed else ""
            speed = "" if event.samples_per_s is None else f"{event.samples_per_s:,.0f} samples/s"
            ratio = "" if event.ratio is None else f" {speedup(event.ratio, event.low, event.high, doubt)}"
            verdict = event.verdict or ("won" if event.won else "")
            knob = (event.knob or "").replace("_", "-")
            why = f" ({event.note})" if event.note else ""
            return f"trial     {knob:11} {speed:>18}  {verdict:8} {plan_line(event)}{ratio}{why}"
        case wire.CalibrationWinner():
            facts = [
                event.why,
                *([] if event.predicted_epoch_s is None else [f"{event.predicted_epoch_s:.1f} s per epoch predicted"]),
                *([f"calibrated in {event.calibration_seconds:.1f} s"] if event.trials else []),
                *([f"{plural(event.skipped, 'plan')} skipped"] if event.skipped else []),
            ]
            return f"plan      {plan_line(event)} ({', '.join(facts)})"
        case wire.BatchAdvice():
            return f"advice    {event.message}"
        case wire.PlanAdapted():
            return f"adapted   {event.field} {event.before} -> {event.after}: {event.reason}"
        case wire.ProcessorsShared():
            return f"shares    {event.message}"
        case wire.PredictionChecked():
            what = f"epoch {event.epoch}" if event.whole else f"first {plural(event.steps, 'step')}"
            why = f", {event.cause}: {event.seen}" if event.cause else ""
            return (
                f"measured  {what} {event.measured_s:.2f} s, predicted {event.predicted_s:.2f} s "
                f"({event.low_s:.2f} to {event.high_s:.2f}), {1e3 * event.measured_batch_s:.2f} and "
                f"{1e3 * event.predicted_batch_s:.2f} ms per step: {event.deviation:+.1%}{why}"
            )
    return None


def _training_line(event: wire.AnyEvent) -> str | None:
    match event:
        case wire.Progress():
            return (
                f"train     epoch {event.epoch}/{event.epochs} step {event.step}/{event.steps} loss {event.loss:.4f} "
                f"accuracy {event.accuracy:.1%} {event.samples_per_s:,.0f} samples/s {event.eta_s:.0f} s left"
            )
        case wire.EpochDone():
            accuracy = "" if event.val_acc is None else f" validation {event.val_acc:.2%}"
            f1 = "" if event.val_macro_f1 is None else f" macro F1 {event.val_macro_f1:.2%}"
            return f"epoch     {event.epoch} loss {event.loss:.4f}{accuracy}{f1} in {event.seconds:.1f} s"
        case wire.TrainingProfile():
            phases = " ".join(f"{phase} {1e3 * batch_s:.2f}" for phase, batch_s, _ in phase_times(event))
            return f"profile   {1e3 * event.average_batch_s:.2f} ms per step: {phases}"
        case wire.TrainingDone():
            f1 = "" if event.macro_f1 is None else f", macro F1 {event.macro_f1:.2%}"
            return (
                f"done      test accuracy {event.test_accuracy:.2%}{f1}, {event.samples_per_s:,.0f} samples/s"
                f"{together(event.workers)}, "
                f"model in {event.artifact}{f' and {event.artifact_url}' if event.artifact_url else ''}"
            )
    return None


def _extra_line(event: wire.AnyEvent) -> str | None:
    match event:
        case wire.OnnxReady():
            return f"onnx      {event.onnx}"
        case wire.ReportReady():
            return f"report    {event.report}"
        case wire.ArtifactUploaded():
            return f"uploaded  {event.artifact_url or event.mlflow_uri}"
    return None


def exit_code(last: wire.AnyEvent | None) -> int:
    """Return the exit code for a job's last event."""
    match last:
        case wire.TrainingDone():
            return 0
        case wire.JobCancelled():
            return CANCELLED
    return FAILURE


def together(workers: int | None) -> str:
    """Return how many workers trained together, behind their speed; empty for one."""
    return f" by {workers} workers" if workers is not None and workers > 1 else ""


def phase_times(profile: wire.StepProfile) -> list[tuple[str, float, float]]:
    """Return each phase with its seconds per step and its share of the total."""
    seconds = {phase: float(getattr(profile, f"{phase}_s")) for phase in PHASES}
    steps, total = max(1, profile.steps), max(profile.total_s, 1e-9)
    return [(phase, spent / steps, spent / total) for phase, spent in seconds.items()]
