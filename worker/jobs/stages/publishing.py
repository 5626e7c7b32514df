"""Publishing stage: put the model in place, and finish the job."""

import json
from collections.abc import Mapping

from pydantic import JsonValue, ValidationError

from preflight.contract.plan import Plan
from preflight.contract.removed import forget_removed, in_one_process
from preflight.contract.spec import TrainSpec
from preflight.errors import ArtifactError, InvalidConfig
from preflight.recognizer.onnx import ONNX
from preflight.wire import ROUNDED, Event, TrainingDone, TrainJob, TrainResult
from preflight.wire.job import SPEC
from training.artifacts.model_dir import REPORT, read_manifest
from training.artifacts.publish import claim_artifact, publish
from worker.jobs.context import JobContext
from worker.jobs.outcome import Finished
from worker.jobs.stages.extras import inherited_extras, select_extras
from worker.jobs.stages.pending_extras import Extras
from worker.jobs.stages.plan_store import PLAN


def publish_model(context: JobContext) -> None:
    """Put the staged model in place.

    Raises:
        ArtifactError: the model could not be put in place, or that of a later attempt is there.
        Interrupted, Superseded: from the job's control.
    """
    context.control.assert_current()
    if not publish(context.paths.staged, context.paths.artifact, context.control.check):
        context.control.assert_current()  # raises, as this process was stopped since the last time
        raise ArtifactError(
            f"{context.paths.artifact} holds the model of a later attempt than {context.attempt}, which is kept; "
            "check it, or delete it and enqueue the job again"
        )


def recover_published(context: JobContext, job: TrainJob) -> Finished | None:
    """Finish a job whose model an earlier attempt published before it died.

    Raises:
        InvalidConfig: the model is that of another request; it stays as it is.
    """
    paths = context.paths
    manifest = read_manifest(paths.artifact, context.control.check) or {}
    if manifest.get("request", job.digest()) != job.digest():
        raise InvalidConfig(
            f"job_id is {context.job_id!r}, under which {paths.artifact} holds another request's model; "
            "enqueue this one under another id, or move that model away",
            field="job_id",
        )
    match manifest:
        case {
            "job_id": context.job_id, "spec": dict(trained), "plan": dict(plan), "metrics": dict(metrics),
            "sha256": {"model.safetensors": str(digest)},
        } if _read_spec(trained) == job.spec():  # fmt: skip
            try:
                kept = PLAN.validate_json(json.dumps(in_one_process(plan, job.spec().batch_size)))
            except ValidationError:
                return None  # the plan is of another version
            if not claim_artifact(paths.artifact, paths.staged, manifest, context.attempt, context.control.check):
                return recover_published(context, job)  # another attempt has just replaced it
            figures = {
                **metrics, "artifact": str(paths.artifact), "model_sha256": digest,
                "predicted_epoch_s": manifest.get("predicted_epoch_s"),
                "parent": manifest.get("parent"), **_dataset(manifest),
                **{kind: str(path) for kind, path in (("report", paths.artifact / REPORT),
                                                      ("onnx", paths.artifact / ONNX)) if path.is_file()},
            }  # fmt: skip
            result = result_of(context, figures, kept)
            extras = inherited_extras(context, result) or select_extras(context, result)
            return finish(context, extras, saved=context.extras.save(extras))
    return None


def _read_spec(trained: dict[str, JsonValue]) -> TrainSpec | None:
    """Return the spec in a manifest; earlier versions wrote fewer fields. None: it cannot be read."""
    try:
        return SPEC.validate_json(json.dumps(forget_removed("job", trained)))
    except ValidationError:
        return None


def _dataset(manifest: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    match manifest:
        case {"dataset": {"name": str(name), "sha256": str(sha256)}, "input": {"class_names": list(names)}}:
            return {"dataset": name, "dataset_sha256": sha256, "class_names": names or None}
        case {"dataset": {"name": str(name), "sha256": str(sha256)}}:
            return {"dataset": name, "dataset_sha256": sha256}
        case {"dataset": {"name": str(name)}}:
            return {"dataset": name}
    return {}


def result_of(context: JobContext, figures: dict[str, JsonValue], plan: Plan) -> TrainResult:
    """Return the result of a finished job with these figures."""
    return TrainResult.model_validate(
        {**figures, "job_id": context.job_id, "attempt": context.attempt, "status": "finished", "plan": plan},
        context=ROUNDED,
    )


def finish(context: JobContext, extras: Extras, *, saved: bool) -> Finished:
    """Emit the result of a job whose model is published; `saved`: another process will find the extras."""
    told = TrainingDone.model_fields.keys() - Event.model_fields.keys() - {"type"}
    payload = extras.result.model_dump(mode="json", include=told, exclude_none=True)
    context.emit("training_done", {**payload, "extras": " ".join(extras.left) or None}, extras.result)
    return Finished(extras.result, extras if extras.left and not saved else None)
