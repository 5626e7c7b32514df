"""Extras stage: the ONNX export and the report beside a trained model; where one fails, that is a warning."""

import math

from training.artifacts import onnx_child
from training.artifacts.onnx_child import ONNX, OnnxRequest
from training.config.plan import Plan
from training.data.dataset_info import DatasetInfo
from training.errors import Cancelled, PreflightError
from worker.jobs.context import JobContext
from worker.jobs.stages.child_runner import run_job_child
from worker.report import child as report_child
from worker.report import request as report_request
from worker.report.request import REPORT, ReportRequest


def export_onnx(context: JobContext, plan: Plan, store: DatasetInfo) -> bool:
    """Write the staged model as ONNX beside it; returns whether that worked."""
    artifact = context.paths.staged
    request = OnnxRequest(artifact=artifact, target=artifact / ONNX, store=store.path, threads=plan.threads)
    return _add(context, ONNX, "ONNX export", onnx_child.MODULE, onnx_child.REQUEST.dump_json(request))


def write_report(context: JobContext, request: ReportRequest) -> bool:
    """Write the report beside the staged model; returns whether that worked."""
    if context.settings.report == "off":
        return False
    missing = report_request.missing()
    if missing is not None:
        context.warn(missing)
        return False
    body = report_request.REQUEST.dump_json(request)
    return _add(context, REPORT, "report", report_child.MODULE, body, seconds=report_request.TIMEOUT_SECONDS)


def _add(
    context: JobContext,
    name: str,
    task: str,
    module: str,
    body: bytes,
    seconds: float = math.inf,
) -> bool:
    """Run the child that writes `name`. An interruption or cancellation ends the job as in training."""
    try:
        run_job_child(context, task, module, body, seconds=seconds)
    except Cancelled:
        raise
    except (PreflightError, OSError) as error:
        context.warn(f"there is no {name}: {error}")
        return False
    return True
