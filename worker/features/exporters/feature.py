"""The exporters as a feature: object stores and MLflow after a result, TensorBoard while a job runs."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from preflight.errors import PreflightError
from worker.config.settings import Settings
from worker.features.exporters.base import Export, ExportRequest, exports, probe, require_usable
from worker.features.exporters.tensorboard import tensorboard_sinks
from worker.jobs.context import JobContext
from worker.jobs.hooks import Check, Extra, Feature


def _require(settings: Settings) -> None:
    for export in exports(settings):
        require_usable(export)


def _extra(export: Export) -> Extra:
    """Return the extra that sends a model to a destination; the model on the local disk is the result."""

    def run(context: JobContext, _: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        request = ExportRequest(job_id=context.job_id, artifact=context.paths.artifact, job=context.paths.job)
        added = export.send(request, context.paths.attempt, context.control.check)
        return added if export.name == "upload" else {"mlflow_uri": export.url}

    def explain(context: JobContext, error: Exception) -> str:
        return (
            f"the model was not sent to {export.url} ({error}); it is kept in {context.paths.artifact}, "
            f"and `preflight upload {context.job_id}` sends it"
        )

    return Extra(
        name=export.name, event="artifact_uploaded",
        field="artifact_url" if export.name == "upload" else "mlflow_uri", is_repeated=False,
        select=lambda *_: {}, run=run, explain=explain,
    )  # fmt: skip


def _upload(settings: Settings, job_id: str, artifact: Path, job: Path) -> list[str]:
    found, request = exports(settings), ExportRequest(job_id=job_id, artifact=artifact, job=job)
    with tempfile.TemporaryDirectory(prefix="preflight-") as work:
        for export in found:
            export.send(request, Path(work), lambda: None)
    return [export.url for export in found]


def _probe(settings: Settings) -> Iterator[Check]:
    for export in exports(settings):
        try:
            probe(export)
        except (PreflightError, OSError) as error:  # OSError: no directory for temporary files
            yield Check("exports", "fail", str(error))
        else:
            yield Check("exports", "ok", f"models are uploaded to {export.url}")


FEATURE: Final = Feature(
    require=_require,
    sinks=tensorboard_sinks,
    extras=lambda settings: [*map(_extra, exports(settings))],
    upload=_upload,
    probe=_probe,
)
