"""Pipeline: the stages of a job, from the request to its outcome; with or without Redis."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pydantic import JsonValue
from redis.exceptions import RedisError

from preflight.errors import Cancelled, GroupShort, InvalidConfig, PreflightError
from preflight.wire import TrainJob, TrainResult
from preflight.wire.configuration import request_of
from training.system.requirements import require_onnx_packages
from worker.broker.fencing import Superseded
from worker.jobs.context import JobContext
from worker.jobs.outcome import Failed, Finished, Outcome, Stopped
from worker.jobs.stages.dataset import pin_dataset, prepare_dataset
from worker.jobs.stages.extras import select_extras
from worker.jobs.stages.group import Group
from worker.jobs.stages.parent import find_parent
from worker.jobs.stages.payloads import versions_payload
from worker.jobs.stages.planning import detect_resources, select_plan
from worker.jobs.stages.publishing import finish, publish_model, recover_published, result_of
from worker.jobs.stages.training import TrainingRun
from worker.state.control import Interrupted

T = TypeVar("T")


def run_pipeline(context: JobContext, job: TrainJob) -> Outcome:
    """Take a job through its stages and return its outcome.

    Raises:
        Interrupted: the worker was asked to stop.
        Superseded: a newer attempt has taken over.
        GroupShort: the job demands more workers than are there.
    """
    return outcome_of(context, lambda: _run_stages(context, pin_dataset(context, job)))


def resume_pipeline(context: JobContext, job: TrainJob) -> Outcome:
    """Finish a job whose model is published already, else run the pipeline; raises as `run_pipeline`."""

    def stages() -> Outcome:
        pinned = pin_dataset(context, job)
        return recover_published(context, pinned) or _run_stages(context, pinned)

    return outcome_of(context, stages)


def outcome_of(context: JobContext, stages: Callable[[], T]) -> T | Outcome:
    """Return what `stages` return; a failure or cancellation in them is emitted and becomes the outcome."""
    try:
        return stages()
    except Cancelled as error:
        context.emit("job_cancelled", {"message": error.message})
        result = TrainResult(job_id=context.job_id, attempt=context.attempt, status="cancelled")
        return Stopped(result, error.message)
    except (Interrupted, Superseded, RedisError, GroupShort):
        raise
    except Exception as error:
        failure = error if isinstance(error, PreflightError) else _internal_error(error)
        context.emit("job_failed", {"reason": failure.reason, "field": failure.field, "message": failure.message})
        return Failed(failure)


def _internal_error(error: Exception) -> PreflightError:
    failure = PreflightError(f"{type(error).__name__}: {error}; please report it")
    failure.__cause__ = error
    return failure


def _run_stages(context: JobContext, job: TrainJob) -> Finished:
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
            "waited_s": None if context.enqueued_at is None else max(0.0, time.time() - context.enqueued_at),
            "request": request_of(job),
            **versions_payload(),
        },
    )
    for message in context.warnings:
        context.warn(message)
    if job.onnx:
        require_onnx_packages()
    for feature in context.features:
        feature.admit(context, job)
    resources = detect_resources(context)
    store = prepare_dataset(context, job)
    parent = find_parent(context, job, spec, store)
    if parent is not None:  # its network expects pixels as it has seen them
        store = replace(store, mean=parent.mean, std=parent.std)
    choice = select_plan(context, job, spec, resources, store)
    training = TrainingRun(
        context=context, job=job, spec=spec, choice=choice, resources=resources, store=store, parent=parent
    )
    training.group = _gather(training)
    return train_and_publish(training)


def _gather(training: TrainingRun) -> Group:
    """Return the group that trains the job; raises `GroupShort`, and `InvalidConfig` where no feature gathers one."""
    for feature in training.context.features:
        if (group := feature.gather(training)) is not None:
            return group
    if (least := training.job.group.min) > 1:
        raise InvalidConfig(
            f"workers is at least {least}, but this worker has no groups; leave workers out", field="workers"
        )
    return Group()


def train_and_publish(training: TrainingRun) -> Finished:
    """Train, publish and finish; what else follows is an extra."""
    context = training.context
    done = training.run()
    figures: dict[str, JsonValue] = {
        **done,
        "artifact": str(context.paths.artifact),
        "dataset": training.store.name,
        "dataset_sha256": training.store.sha256 or done.get("dataset_sha256"),
        "class_names": [*training.store.class_names] or None,
        "parent": training.parent.lineage.model_dump(mode="json") if training.parent else None,
        "predicted_epoch_s": training.choice.predicted_epoch_s,
    }
    extras = select_extras(context, result_of(context, figures, training.plan), training)
    saved = context.extras.save(extras)  # before anybody can see the model: the extras outlive every kill after that
    publish_model(context)
    return finish(context, extras, saved=saved)
