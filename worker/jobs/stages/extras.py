"""Extras stage: what follows the result of a job, each with its event; where one fails, that is a warning."""

from dataclasses import replace
from typing import Final, Literal

from pydantic import JsonValue
from pydantic.dataclasses import dataclass

from training.artifacts import onnx_child
from training.artifacts.onnx_child import ONNX, OnnxRequest
from training.config.spec import STRICT
from training.errors import PreflightError
from worker.exporters.base import Destination, ExportRequest, exports
from worker.jobs.context import JobContext
from worker.jobs.stages.child_runner import run_job_child
from worker.report import child as report_child
from worker.report import request as report_request
from worker.report.request import REPORT, ReportRequest
from worker.wire import TrainResult

Extra = Literal["onnx", "report", "upload", "mlflow"]

ONNX_TIMEOUT: Final = 600.0
"""Seconds for an ONNX export and its comparison with the model."""
EVENTS: Final[dict[Extra, str]] = {
    "onnx": "onnx_ready", "report": "report_ready", "upload": "artifact_uploaded", "mlflow": "artifact_uploaded",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Extras:
    """What follows the result of an attempt."""

    result: TrainResult
    """With the fields of the extras so far."""
    left: tuple[Extra, ...]
    """In their order: what is uploaded has the files of the others."""
    onnx: OnnxRequest | None = None
    report: ReportRequest | None = None


def select_extras(
    context: JobContext, result: TrainResult, *, onnx: OnnxRequest | None = None, report: ReportRequest | None = None
) -> Extras:
    """Return the extras of a job: its files, where they are wanted, and the destinations of the settings."""
    if report is not None and not _is_report_possible(context):
        report = None
    files: tuple[tuple[Extra, object], ...] = (("onnx", onnx), ("report", report))
    left = [*(name for name, request in files if request), *(export.name for export in exports(context.settings))]
    return Extras(result=result, left=tuple(left), onnx=onnx, report=report)


def _is_report_possible(context: JobContext) -> bool:
    if context.settings.report == "off":
        return False
    missing = report_request.missing()
    if missing is not None:
        context.warn(missing)
    return missing is None


def add_extras(context: JobContext, extras: Extras) -> TrainResult:
    """Do what is left; returns the result with its fields. Raises what `context.control` raises."""
    for extra in extras.left:
        extras = add_extra(context, extras, extra)
    return extras.result


def add_extra(context: JobContext, extras: Extras, extra: Extra) -> Extras:
    """Do one of the extras and emit its event, or a warning; returns the others."""
    context.control.assert_current()
    left = tuple(other for other in extras.left if other != extra)
    try:
        fields = _run(context, extras, extra)
    except (PreflightError, OSError) as error:
        context.warn(_failure(context, extra, error))
        return replace(extras, left=left)
    result = extras.result.model_copy(
        update={name: value for name, value in fields.items() if name in TrainResult.model_fields}
    )
    if fields:
        context.emit(EVENTS[extra], fields, result)
    return replace(extras, left=left, result=result)


def _run(context: JobContext, extras: Extras, extra: Extra) -> dict[str, JsonValue]:
    """Return the fields of the event; none where the extra is not wanted any more."""
    if extra == "onnx" and extras.onnx is not None:
        return _export_onnx(context, extras.onnx)
    if extra == "report" and extras.report is not None:
        return _write_report(context, extras.report)
    return _send(context, extra) if extra in ("upload", "mlflow") else {}


def _export_onnx(context: JobContext, request: OnnxRequest) -> dict[str, JsonValue]:
    body = onnx_child.REQUEST.dump_json(request)
    run_job_child(context, "ONNX export", onnx_child.MODULE, body, seconds=ONNX_TIMEOUT)
    return {"onnx": str(request.target)}


def _write_report(context: JobContext, request: ReportRequest) -> dict[str, JsonValue]:
    body = report_request.REQUEST.dump_json(request)
    run_job_child(context, "report", report_child.MODULE, body, seconds=report_request.TIMEOUT_SECONDS)
    return {"report": str(request.artifact / REPORT)}


def _send(context: JobContext, name: Destination) -> dict[str, JsonValue]:
    """Send the published model to a destination, unless the settings have none any more."""
    request = ExportRequest(job_id=context.job_id, artifact=context.paths.artifact, job=context.paths.job)
    for export in exports(context.settings):
        if export.name == name:
            added = export.send(request, context.paths.attempt, context.control.check)
            return added if name == "upload" else {"mlflow_uri": export.url}
    return {}


def _failure(context: JobContext, extra: Extra, error: Exception) -> str:
    """Return a sentence about a failed extra."""
    if extra in ("onnx", "report"):
        return f"there is no {ONNX if extra == 'onnx' else REPORT}: {error}"
    url = next((export.url for export in exports(context.settings) if export.name == extra), extra)
    return (
        f"the model was not sent to {url} ({error}); it is kept in {context.paths.artifact}, "
        f"and `preflight upload {context.job_id}` sends it"
    )
