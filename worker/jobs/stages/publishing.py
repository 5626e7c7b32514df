"""Publishing stage: put the model in place, upload it, and finish the job."""

import json
from dataclasses import asdict

from pydantic import JsonValue, ValidationError

from training.artifacts.model_dir import read_manifest
from training.artifacts.onnx_child import ONNX
from training.artifacts.publish import claim_artifact, publish
from training.config.plan import Plan
from training.errors import ArtifactError, Cancelled, InvalidConfig, PreflightError
from worker.exporters.base import ExportRequest, exports
from worker.jobs.context import JobContext
from worker.jobs.plan_store import PLAN
from worker.report.request import REPORT
from worker.wire import TrainJob, TrainResult


def publish_model(context: JobContext) -> None:
    """Put the staged model in place.

    Raises:
        ArtifactError: that failed, or the model of a later attempt is there.
        Interrupted, Superseded: from the job's control.
    """
    context.control.assert_current()
    if not publish(context.paths.staged, context.paths.artifact, context.control.check):
        context.control.assert_current()  # raises, as this process was stopped since the last time
        raise ArtifactError(
            f"{context.paths.artifact} holds the model of a later attempt than {context.attempt}, which is kept; "
            "check it, or delete it and enqueue the job again"
        )


def recover_published(context: JobContext, job: TrainJob) -> TrainResult | None:
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
        } if trained == asdict(job.spec()):  # fmt: skip
            try:
                kept = PLAN.validate_json(json.dumps(plan))
            except ValidationError:
                return None  # of another version
            if not claim_artifact(paths.artifact, paths.staged, manifest, context.attempt, context.control.check):
                return recover_published(context, job)  # another attempt has just replaced it
            figures = {
                **metrics, "artifact": str(paths.artifact), "model_sha256": digest,
                "predicted_epoch_s": manifest.get("predicted_epoch_s"),
                **{kind: str(path) for kind, path in (("report", paths.artifact / REPORT),
                                                      ("onnx", paths.artifact / ONNX)) if path.is_file()},
            }  # fmt: skip
            return finish(context, figures, kept)
    return None


def finish(context: JobContext, figures: dict[str, JsonValue], plan: Plan) -> TrainResult:
    """Upload the published model, and emit and return the result of the job."""
    result = TrainResult.model_validate(
        {**figures, "job_id": context.job_id, "attempt": context.attempt, "status": "finished", "plan": plan}
    )
    added = _upload(context)
    result = result.model_copy(update=added)
    payload = {name: value for name, value in {**figures, **added}.items() if name != "profile"}
    context.emit("training_done", payload, result)
    return result


def _upload(context: JobContext) -> dict[str, JsonValue]:
    """Upload the published model to every destination; return the fields that this adds to the result.

    A failed upload is a warning. What ends the job (`Cancelled`, `Interrupted`, `Superseded`) is raised; an attempt
    that recovers the model uploads it again.
    """
    added: dict[str, JsonValue] = {}
    request = ExportRequest(job_id=context.job_id, artifact=context.paths.artifact, job=context.paths.job)
    for export in exports(context.settings):
        context.control.assert_current()
        try:
            added |= export.send(request, context.paths.attempt, context.control.check)
        except Cancelled:
            raise
        except PreflightError as error:
            context.warn(
                f"the model was not sent to {export.url} ({error.message}); it is kept in "
                f"{context.paths.artifact}, and `preflight upload {context.job_id}` sends it"
            )
    return added
