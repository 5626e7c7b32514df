"""Each event as a sentence: log, terminal and page say the same words."""

from collections.abc import Sequence
from typing import Final

from preflight import wire
from preflight.contract.plan import words
from preflight.contract.verdicts import DISTURBED, OUTCOMES, PHASES, speedup
from preflight.events.plan_words import plan_line
from preflight.numbers import about, duration, memory, plural, predicted

VERDICTS: Final = {
    "own": "was measured first", "won": "won", "kept": "is kept", "level": "is not proven faster",
    "lost": "is slower", "dropped": "is slower and was stopped early", "rejected": "was rejected",
    "failed": "failed", "skipped": "is not worth a measurement",
}  # fmt: skip
"""Verdict on a trial -> predicate of its sentence."""


def sentence(event: wire.AnyEvent) -> str:
    """Return an event as one line."""
    said = _of_job(event) or _of_plan(event) or _of_training(event) or _spoken(event.type)
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


def _spoken(name: str) -> str:
    return name.replace("_", " ")


def _of_job(event: wire.AnyEvent) -> str | None:
    match event:
        case wire.JobStarted():
            job = f"{event.model} on {event.dataset}, {plural(event.epochs, 'epoch')}, batch {event.batch_size:,}"
            return f"Attempt {event.attempt} started: {job}, by worker {event.worker}{_versions(event)}"
        case wire.ResourceLimits():
            quota = "" if event.quota is None else f" (quota {event.quota:g})"
            cores = f"{plural(event.cpu_cores, 'core')}{quota}"
            return f"The container allows {cores} and {event.memory_mib:,} MiB of memory ({event.source})"
        case wire.DatasetReady():
            counts = f"{event.train_samples:,} training and {event.test_samples:,} test samples"
            return f"Data set {event.dataset} is ready after {duration(event.took_s)}: {counts}"
        case wire.JobResumed():
            steps = f" and {plural(event.steps_done, 'step')}" if event.steps_done else ""
            return f"Resumed from the checkpoint after {plural(event.epochs_done, 'epoch')}{steps}"
        case wire.CheckpointSaved():
            steps = f" and {plural(event.steps_done, 'step')}" if event.steps_done else ""
            return f"Saved a checkpoint after {plural(event.epochs_done, 'epoch')}{steps}, in {duration(event.took_s)}"
        case wire.JobWarning():
            speaker = "" if event.rank is None else f" of rank {event.rank}"
            return f"Warning{speaker}: {event.message}"
        case wire.MemoryRanOut():
            return f"Out of memory: {event.message}"
        case wire.JobFailed():
            return f"Failed, {_spoken(event.reason)}: {event.message}"
        case wire.JobInterrupted() | wire.JobCancelled() | wire.GroupShort():
            return event.message
        case wire.TrainingDone():
            f1 = "" if event.macro_f1 is None else f" and a macro F1 of {event.macro_f1:.2%}"
            trained = f"{plural(event.epochs, 'epoch')} in {duration(event.train_s)}"
            speed = f"{event.samples_per_s:,.0f} samples/s{together(event.workers)}"
            model = f"model in {event.artifact}{f' and {event.artifact_url}' if event.artifact_url else ''}"
            return f"Finished with a test accuracy of {event.test_accuracy:.2%}{f1}, {trained}, {speed}; {model}"
        case wire.OnnxReady():
            return f"The finished job has its ONNX model: {event.onnx}"
        case wire.ReportReady():
            return f"The finished job has its report: {event.report}"
        case wire.ArtifactUploaded():
            return f"The model of the finished job was sent to {event.artifact_url or event.mlflow_uri}"
    return None


def together(workers: int | None) -> str:
    """Return how many workers trained together, behind their speed; empty for one."""
    return f" by {workers} workers" if workers is not None and workers > 1 else ""


def _versions(event: wire.JobStarted) -> str:
    found = (("preflight", event.preflight_version), ("torch", event.torch_version), ("Python", event.python_version))
    known = ", ".join(f"{name} {version}" for name, version in found if version)
    return f" ({known})" if known else ""


def _method(event: wire.TrainingConfig) -> str:
    """Return optimizer and learning rate; empty for events until 0.27."""
    if event.optimizer is None or event.learning_rate is None:
        return ""
    return f"{event.optimizer}, learning rate {event.learning_rate:g} ({event.schedule}), "


def _seed(event: wire.TrainingConfig) -> str:
    return "" if event.seed is None else f", seed {event.seed}"


def _of_plan(event: wire.AnyEvent) -> str | None:
    match event:
        case wire.MemoryProbed():
            return f"Memory, {PHASES[event.phase]}: a micro-batch of {event.micro_batch} {_probe(event)}"
        case wire.CalibrationTrial():
            return _trial(event)
        case wire.CalibrationWinner():
            low, high = event.predicted_low_s, event.predicted_high_s
            facts = [
                f"Plan chosen: {plan_line(event)}",
                event.why,
                *(
                    []
                    if event.predicted_epoch_s is None
                    else [predicted(event.predicted_epoch_s, low, high, " an epoch")]
                ),
                *([f"the calibration took {duration(event.calibration_s)}"] if event.trials else []),
            ]
            return "; ".join(facts)
        case wire.BatchAdvice():
            return event.message
        case wire.TrainingConfig():
            micro = event.plan().micro_batch < event.batch_size
            plan = plan_line(event, *(("micro_batch",) if micro else ()))
            return f"Training with {plan}: {_method(event)}batch {event.batch_size:,}{_seed(event)}"
        case wire.LoaderConfig():
            by = plural(event.num_workers, "loader worker") if event.num_workers else "the training process itself"
            return f"Batches are fetched by {by}"
        case wire.PlanAdapted():
            after, before = (words(event.field).of(value) for value in (event.after, event.before))
            what = f"Kept {after}" if event.before == event.after else f"Changed {before} to {after}"
            return f"{what}: {event.reason}"
        case wire.ProcessorsShared():
            return f"Has {event.message}"
        case wire.PredictionChecked():
            what = f"Epoch {event.epoch}" if event.whole else f"The first {plural(event.steps, 'step')}"
            foreseen = predicted(event.predicted_s, event.low_s, event.high_s)
            seen = f", {event.deviation:+.0%}: {event.seen}" if event.seen else ""
            return f"{what} took {duration(event.measured_s)}; predicted: {foreseen}{seen}"
    return None


def _trial(event: wire.CalibrationTrial) -> str:
    verdict = event.verdict or ("won" if event.won else "level")
    did = VERDICTS[verdict] if event.reached else "was not reached"
    plan = plan_line(event, event.knob or "")
    what = f"Trial of {_knob(event)} ({plan})" if verdict != "own" else "The job's own plan"
    doubt, before = DISTURBED if event.disturbed else "", "the best plan before it"
    speed = "" if event.ratio is None else f", {speedup(event.ratio, event.low, event.high, doubt, before)}"
    own = f": {plan}" if verdict == "own" else ""
    rate = "" if event.samples_per_s is None else f", {event.samples_per_s:,.0f} samples/s"
    return f"{what} {did}{own}{speed}{rate}{f': {event.note}' if event.note else ''}"


def _knob(event: wire.CalibrationTrial) -> str:
    return (event.knob or "plan").replace("_", "-")


def _probe(event: wire.MemoryProbed) -> str:
    """Return the memory of a micro-batch in words: measured, else predicted."""
    known = event.peak_bytes if event.peak_bytes is not None else event.predicted_bytes
    how = "takes" if event.peak_bytes is not None else "is predicted to take"
    size = "" if known is None else f"{how} {memory(known)} of {memory(event.limit_bytes)}: "
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
                f"{place}: loss {event.loss:.4f}, training accuracy {event.accuracy:.1%}, "
                f"{event.samples_per_s:,.0f} samples/s, {about(event.eta_s)} left"
            )
        case wire.EpochDone():
            accuracy = "" if event.val_acc is None else f", validation accuracy {event.val_acc:.2%}"
            f1 = "" if event.val_macro_f1 is None else f", validation macro F1 {event.val_macro_f1:.2%}"
            return f"Epoch {event.epoch} took {duration(event.took_s)}: training loss {event.loss:.4f}{accuracy}{f1}"
        case wire.TrainingProfile():
            phases = ", ".join(f"{phase} {share:.0%}" for phase, _, share in event.phases() if share >= 0.005)
            return f"A step took {duration(event.average_batch_s)}: {phases}"
    return None
