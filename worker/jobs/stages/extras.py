"""Extras stage: what follows the result of a job, each with its event; where one fails, that is a warning."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pydantic import JsonValue

from preflight.errors import PreflightError
from preflight.recognizer.onnx import ONNX
from preflight.wire import AnyEvent, ArtifactUploaded, OnnxReady, ReportReady, TrainResult
from training.artifacts import onnx_child
from training.artifacts.onnx_child import OnnxRequest
from worker.features.exporters.base import Destination, ExportRequest, exports
from worker.features.report import child as report_child
from worker.features.report import request as report_request
from worker.features.report.request import REPORT, ReportRequest
from worker.jobs.context import JobContext
from worker.jobs.stages.child_runner import run_job_child
from worker.jobs.stages.pending_extras import Extra, Extras, pending_attempts, read_pending
from worker.state.control import Interrupted

ONNX_TIMEOUT: Final = 600.0
"""Seconds for an ONNX export and its comparison with the model."""
EVENTS: Final[dict[Extra, str]] = {
    "onnx": "onnx_ready", "report": "report_ready", "upload": "artifact_uploaded", "mlflow": "artifact_uploaded",
}  # fmt: skip


def select_extras(
    context: JobContext, result: TrainResult, *, onnx: OnnxRequest | None = None, report: ReportRequest | None = None
) -> Extras:
    """Return the extras of a job: its files, where they are wanted, and the destinations of the settings."""
    if report is not None and not _is_report_possible(context):
        report = None
    files: tuple[tuple[Extra, object], ...] = (("onnx", onnx), ("report", report))
    left = [*(name for name, request in files if request), *(export.name for export in exports(context.settings))]
    return Extras(result=result, left=tuple(left), onnx=onnx, report=report)


def without_told(extras: Extras, events: Sequence[tuple[AnyEvent, TrainResult | None]]) -> Extras:
    """Return the extras without those whose events are among `events` of the attempt, which may outlive a kill."""
    told: set[Extra] = set()
    for event, result in events:
        match event:
            case OnnxReady():
                told.add("onnx")
            case ReportReady():
                told.add("report")
            case ArtifactUploaded():
                told.add("upload" if event.artifact_url is not None else "mlflow")
            case _:
                continue
        extras = extras if result is None else replace(extras, result=result)
    left = tuple(extra for extra in extras.left if extra not in told)
    return extras if left == extras.left else replace(extras, left=left, tries=0)


def inherited_extras(context: JobContext, result: TrainResult) -> Extras | None:
    """Return what an earlier attempt that died left to do after the result; None where it recorded nothing."""
    job = context.paths.job
    for attempt in pending_attempts(job):
        pending = read_pending(job, attempt)
        if pending is not None:
            there = {"onnx": result.onnx, "report": result.report}
            left = tuple(extra for extra in pending.extras.left if there.get(extra) is None)
            return replace(pending.extras, result=result, left=left, tries=0)
    return None


def _is_report_possible(context: JobContext) -> bool:
    if context.settings.report == "off":
        return False
    missing = report_request.missing()
    if missing is not None:
        context.warn(missing)
    return missing is None


def add_extras(context: JobContext, extras: Extras) -> Extras:
    """Do what is left, in order; return what is left then: an extra to be tried again later, and those after it.

    Raises:
        Interrupted, Superseded: from the job's control; no try was spent.
    """
    while extras.left:
        context.control.assert_current()
        if extras.tries == context.extras.max_tries:
            error = PreflightError(f"its process died {extras.tries} times")
            extras = _fail(context, replace(extras, tries=extras.tries - 1), error)
            continue
        context.extras.save(replace(extras, tries=extras.tries + 1))  # a death would leave no other trace
        try:
            after = _add(context, extras)
        except Interrupted:
            context.extras.save(extras)
            raise
        if after.left:  # else the file stays until the events are published
            context.extras.save(after)
        if after.left == extras.left:
            return after
        extras = after
    return extras


def _add(context: JobContext, extras: Extras) -> Extras:
    """Do the first of the extras that are left, and emit its event, or a warning; returns the others."""
    extra, *left = extras.left
    try:
        fields = _run(context, extras, extra)
    except (PreflightError, OSError) as error:
        return _fail(context, extras, error)
    result = extras.result.model_copy(
        update={name: value for name, value in fields.items() if name in TrainResult.model_fields}
    )
    if fields:
        context.emit(EVENTS[extra], fields, result)
    return replace(extras, left=tuple(left), result=result, tries=0)


def _fail(context: JobContext, extras: Extras, error: Exception) -> Extras:
    """Warn of a failure; return what is left: the extra, too, where it is a file and its failure may pass."""
    extra, *left = extras.left
    tries = extras.tries + 1
    may_pass = extra in ("onnx", "report") and (isinstance(error, OSError) or getattr(error, "retry", False))
    if may_pass and tries < context.extras.max_tries:
        context.warn(f"{_failure(context, extra, error)}; it is tried again within minutes")
        return replace(extras, tries=tries)
    context.warn(_failure(context, extra, error))
    return replace(extras, left=tuple(left), tries=0)


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
    run_job_child(
        context, "report", report_child.MODULE, body, seconds=report_request.TIMEOUT_SECONDS,
        server=context.report_server,
    )  # fmt: skip
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
