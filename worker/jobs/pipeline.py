"""Pipeline: the stages of a job, from the request to its outcome; with or without Redis."""

from collections.abc import Callable
from typing import TypeVar

from pydantic import JsonValue
from redis.exceptions import RedisError

from training.artifacts.onnx_child import ONNX
from training.errors import Cancelled, PreflightError
from training.system.requirements import require_onnx_packages
from worker.broker.fencing import Superseded
from worker.jobs.context import JobContext
from worker.jobs.control import Interrupted
from worker.jobs.outcome import Failed, Finished, Outcome, Stopped
from worker.jobs.stages.dataset import prepare_dataset
from worker.jobs.stages.extras import export_onnx, write_report
from worker.jobs.stages.planning import detect_resources, select_plan
from worker.jobs.stages.publishing import finish, publish_model, recover_published
from worker.jobs.stages.training import TrainingRun
from worker.report.facts import facts
from worker.report.request import REPORT, ReportRequest
from worker.wire import TrainJob, TrainResult

T = TypeVar("T")


def run_pipeline(context: JobContext, job: TrainJob) -> Outcome:
    """Take a job through its stages and return its outcome.

    Raises:
        Interrupted: the worker was asked to stop.
        Superseded: a newer attempt has taken over.
    """
    return outcome_of(context, lambda: Finished(_run_stages(context, job)))


def resume_pipeline(context: JobContext, job: TrainJob) -> Outcome:
    """Finish a job whose model is published already, else run the pipeline; raises as `run_pipeline`."""
    return outcome_of(context, lambda: Finished(recover_published(context, job) or _run_stages(context, job)))


def outcome_of(context: JobContext, stages: Callable[[], T]) -> T | Outcome:
    """Return what `stages` return; a failure or cancellation in them is emitted and becomes the outcome."""
    try:
        return stages()
    except Cancelled as error:
        context.emit("job_cancelled", {"message": error.message})
        result = TrainResult(job_id=context.job_id, attempt=context.attempt, status="cancelled")
        return Stopped(result, error.message)
    except (Interrupted, Superseded, RedisError):
        raise
    except Exception as error:
        failure = error if isinstance(error, PreflightError) else _internal_error(error)
        context.emit("job_failed", {"reason": failure.reason, "field": failure.field, "message": failure.message})
        return Failed(failure)


def _internal_error(error: Exception) -> PreflightError:
    failure = PreflightError(f"{type(error).__name__}: {error}; please report it")
    failure.__cause__ = error
    return failure


def _run_stages(context: JobContext, job: TrainJob) -> TrainResult:
    spec = job.spec()
    context.emit(
        "job_started",
        {
            "worker": context.worker,
            "dataset": spec.dataset,
            "recipe": job.recipe,
            "model": spec.model,
            "epochs": spec.epochs,
            "batch_size": spec.batch_size,
        },
    )
    for message in context.warnings:
        context.warn(message)
    if job.onnx:
        require_onnx_packages()
    resources = detect_resources(context)
    store = prepare_dataset(context, job)
    choice = select_plan(context, job, spec, resources, store)
    return train_and_publish(
        TrainingRun(context=context, job=job, spec=spec, choice=choice, resources=resources, store=store)
    )


def train_and_publish(training: TrainingRun) -> TrainResult:
    """Train, add the ONNX file and the report, publish and finish."""
    context = training.context
    figures: dict[str, JsonValue] = {
        **training.run(),
        "artifact": str(context.paths.artifact),
        "predicted_epoch_s": training.choice.predicted_epoch_s,
    }
    if training.job.onnx and export_onnx(context, training.plan, training.store):
        figures["onnx"] = str(context.paths.artifact / ONNX)
    if write_report(context, _report_request(training)):
        figures["report"] = str(context.paths.artifact / REPORT)
    publish_model(context)
    return finish(context, figures, training.plan)


def _report_request(training: TrainingRun) -> ReportRequest:
    context, choice = training.context, training.choice
    return ReportRequest(
        job_id=context.job_id,
        artifact=context.paths.staged,
        store=training.store.path,
        why=choice.why,
        facts=facts(choice, training.spec, training.resources),
        finding=choice.finding,
        prediction=choice.prediction if training.plan == choice.plan else None,
        calibration_s=choice.calibration_seconds + choice.import_seconds,
        training_s=training.seconds,
        losses=tuple(training.records.losses.points),
    )
