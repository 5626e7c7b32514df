"""ONNX file of a job with `onnx`, made after its result."""

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue
from pydantic_core import to_json

from preflight.recognizer.onnx import ONNX
from training.artifacts import onnx_child
from training.artifacts.onnx_child import OnnxRequest
from worker.jobs.context import JobContext
from worker.jobs.hooks import Extra
from worker.jobs.stages.child_runner import run_job_child
from worker.jobs.stages.training import TrainingRun

TIMEOUT_SECONDS: Final = 600.0
"""For an ONNX export and its comparison with the model."""


def _select(context: JobContext, training: TrainingRun | None) -> dict[str, JsonValue] | None:
    if training is None or not training.job.onnx:
        return None
    artifact = context.paths.artifact
    request = OnnxRequest(
        artifact=artifact, target=artifact / ONNX, store=training.store.path, threads=training.plan.threads
    )
    kept: dict[str, JsonValue] = onnx_child.REQUEST.dump_python(request, mode="json")
    return kept


def _run(context: JobContext, request: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    run_job_child(context, "ONNX export", onnx_child.MODULE, to_json(request), seconds=TIMEOUT_SECONDS)
    return {"onnx": str(request["target"])}


ONNX_FILE: Final = Extra(
    name="onnx", event="onnx_ready", field="onnx", is_repeated=True, select=_select, run=_run,
    explain=lambda _, error: f"there is no {ONNX}: {error}",
)  # fmt: skip
