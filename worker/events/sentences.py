"""Each event as a sentence: the log and the page say the same words."""

from collections.abc import Sequence
from typing import Final

from calibration.verdicts import OUTCOMES, PHASES
from preflight import wire
from preflight.contract.verdicts import DISTURBED, speedup
from preflight.events.plan_words import plan_line
from preflight.numbers import MIB, plural
from training.step import profiler

VERDICTS: Final = {
    "own": "was measured first", "won": "won", "kept": "is kept", "level": "is not proven faster",
    "lost": "is slower", "dropped": "is slower and was stopped early", "rejected": "was rejected",
    "failed": "failed", "skipped": "is not worth a measurement",
}  # fmt: skip
"""Verdict on a trial -> predicate of its sentence."""


def sentence(event: wire.AnyEvent) -> str:
    """Return an event as one line."""
    said = _of_job(event) or _of_plan(event) or _of_training(event) or _words(event.type)
    return as_sentence(said)


def skipped_sentence(trials: Sequence[wire.CalibrationTrial]) -> str:
    """Return the trials that were not run as one line; why is in the sentence of each."""
    worthless, late = ([trial for trial in trials if trial.reached is reached] for reached in (True, False))
    parts = [
        f"{plural(len(some), 'plan')} {verb} ({', '.join(dict.fromkeys(_knob(trial) for trial in some))})"
        for some, verb in ((worthless, "not worth a measurement"), (late, "not reached before the search ended"))
        if some
    ]
    return as_sentence("; ".join(parts))


def as_sentence(clause: str) -> str:
    """Return a clause on one line, with a capital letter and a full stop; a name at its start keeps its case."""
    text = " ".join(clause.split())
    first = text.split(" ", 1)[0].rstrip(",;:")
    start = text[:1].upper() if first.isalpha() and first.islower() else text[:1]
    return text and start + text[1:] + ("" if text[-1] in ".!?" else ".")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _of_job(event: wire.AnyEvent) -> str | None:
    match event:
        case wire.JobStarted():
            job = f"{event.model} on {event.dataset}, {plural(event.epochs, 'epoch')}, batch {event.batch_size:,}"
            return f"Attempt {event.attempt} started: {job}, by worker {event.worker}"
        case wire.ResourceLimits():
            quota = "" if event.quota is None else f" (quota {event.quota:g})"
            cores = f"{plural(event.cpu_cores, 'core')}{quota}"
            return f"The container allows {cores} and {event.memory_mb:,} MiB of memory ({event.source})"
        case wire.DatasetReady():
            counts = f"{event.train_samples:,} training and {event.test_samples:,} test samples"
            return f"Data set {event.dataset} is ready after {event.seconds:.1f} s: {counts}"
        case wire.JobResumed():
            steps = f" and {plural(event.steps_done, 'step')}" if event.steps_done else ""
            return f"Resumed from the checkpoint after {plural(event.epochs_done, 'epoch')}{steps}"
        case wire.CheckpointSaved():
            steps = f" and {plural(event.steps_done, 'step')}" if event.steps_done else ""
            return f"Saved a checkpoint after {plural(event.epochs_done, 'epoch')}{steps}, in {event.seconds:.2f} s"
        case wire.JobWarning():
            speaker = "" if event.rank is None else f" of rank {event.rank}"
            return f"Warning{speaker}: {as_sentence(event.message)}"
        case wire.MemoryRanOut():
            return f"Out of memory: {as_sentence(event.message)}"
        case wire.JobFailed():
            return f"Failed, {_words(event.reason)}: {as_sentence(event.message)}"
        case wire.JobInterrupted() | wire.JobCancelled() | wire.GroupShort():
            return event.message
        case wire.TrainingDone():
            f1 = "" if event.macro_f1 is None else f" and a macro F1 of {event.macro_f1:.2%}"
            return f"Finished with a test accuracy of {event.test_accuracy:.2%}{f1}"
        case wire.OnnxReady():
            return f"The finished job has its ONNX model: {event.onnx}"
        case wire.ReportReady():
            return f"The finished job has its report: {event.report}"
        case wire.ArtifactUploaded():
            return f"The model of the finished job was sent to {event.artifact_url or event.mlflow_uri}"
    return None


def _of_plan(event: wire.AnyEvent) -> str | None:
    match event:
        case wire.MemoryProbed():
            return f"Memory, {PHASES[event.phase]}: a micro-batch of {event.micro_batch} {_probe(event)}"
        case wire.CalibrationTrial():
            return _trial(event)
        case wire.CalibrationWinner():
            cost = f"; the calibration took {event.calibration_seconds:.1f} s" if event.trials else ""
            return f"Plan chosen: {plan_line(event)}; {event.why}{cost}"
        case wire.BatchAdvice():
            return event.message
        case wire.TrainingConfig():
            return f"Training with {plan_line(event)}, {plural(event.batch_size, 'sample')} in a step"
        case wire.LoaderConfig():
            by = plural(event.num_workers, "loader worker") if event.num_workers else "the training process itself"
            return f"Batches are fetched by {by}"
        case wire.PlanAdapted():
            field = event.field.replace("_", "-")
            what = (
                f"Kept {field} at {event.after}"
                if event.before == event.after
                else f"Changed {field} from {event.before} to {event.after}"
            )
            return f"{what}: {as_sentence(event.reason)}"
        case wire.ProcessorsShared():
            return f"Has {event.message}"
        case wire.PredictionChecked():
            what = f"Epoch {event.epoch}" if event.whole else f"The first {plural(event.steps, 'step')}"
            predicted = f"{event.predicted_s:.2f} s ({event.low_s:.2f} to {event.high_s:.2f}) were predicted"
            seen = f": {event.seen}" if event.seen else ""
            return f"{what} took {event.measured_s:.2f} s, {predicted}, {event.deviation:+.1%}{seen}"
    return None


def _trial(event: wire.CalibrationTrial) -> str:
    verdict = event.verdict or ("won" if event.won else "level")
    did = VERDICTS[verdict] if event.reached else "was not reached"
    what = f"Trial of {_knob(event)}: {plan_line(event)}" if verdict != "own" else "The job's own plan"
    doubt, before = DISTURBED if event.disturbed else "", "the best plan before it"
    speed = "" if event.ratio is None else f", {speedup(event.ratio, event.low, event.high, doubt, before)}"
    own = f": {plan_line(event)}" if verdict == "own" else ""
    rate = "" if event.samples_per_s is None else f", {event.samples_per_s:,.0f} samples/s"
    return f"{what} {did}{own}{speed}{rate}{f': {event.note}' if event.note else ''}"


def _knob(event: wire.CalibrationTrial) -> str:
    return (event.knob or "plan").replace("_", "-")


def _probe(event: wire.MemoryProbed) -> str:
    """Return what is known of the memory of a micro-batch: measured, else predicted."""
    known = event.peak_bytes if event.peak_bytes is not None else event.predicted_bytes
    how = "takes" if event.peak_bytes is not None else "is predicted to take"
    size = "" if known is None else f"{how} {known / MIB:,.0f} MiB of {event.limit_bytes / MIB:,.0f}: "
    return f"{size}{OUTCOMES[event.outcome]}"


def _of_training(event: wire.AnyEvent) -> str | None:
    match event:
        case wire.GroupFormed() | wire.GroupMeasured() | wire.GroupChanged() | wire.ModelInitialized():
            return event.message
        case wire.ModelBuilt():
            return f"Model {event.model} has {plural(event.parameters, 'parameter')}"
        case wire.Progress():
            place = f"Epoch {event.epoch} of {event.epochs}, step {event.step:,} of {event.steps:,}"
            return (
                f"{place}: loss {event.loss:.4f}, accuracy {event.accuracy:.1%}, {event.samples_per_s:,.0f} samples/s"
            )
        case wire.EpochDone():
            accuracy = "" if event.val_acc is None else f", validation accuracy {event.val_acc:.2%}"
            f1 = "" if event.val_macro_f1 is None else f", macro F1 {event.val_macro_f1:.2%}"
            return f"Epoch {event.epoch} took {event.seconds:.1f} s: loss {event.loss:.4f}{accuracy}{f1}"
        case wire.TrainingProfile():
            shares = {phase: getattr(event, f"{phase}_s") / max(event.total_s, 1e-9) for phase in profiler.PHASES}
            phases = ", ".join(f"{phase} {share:.0%}" for phase, share in shares.items() if share >= 0.005)
            return f"A step took {1e3 * event.average_batch_s:.2f} ms: {phases}"
    return None
