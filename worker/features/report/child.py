"""Report process: render the page of a run or of a calibration."""

import gc
import json
import time
from typing import Final, NoReturn

from pydantic import TypeAdapter, ValidationError

from preflight.errors import ArtifactError
from preflight.files.atomic_files import write_atomically
from preflight.files.journal import JournalWriter
from training.artifacts.model_dir import REPORT, read_manifest
from training.process.child_main import StopFlag, serve_request
from worker.features.report.request import REQUEST, CalibrationReportRequest, ReportRequest

MODULE: Final = "worker.features.report.child"


def run(
    request: ReportRequest | CalibrationReportRequest, journal: JournalWriter, should_stop: StopFlag  # noqa: ARG001 - every child's signature
) -> None:  # fmt: skip
    """Write the page and record `done` with the seconds it took."""
    began = time.perf_counter()
    gc.disable()  # this process ends after a few figures; collecting garbage would take a sixth of their time
    if isinstance(request, CalibrationReportRequest):
        from worker.features.report.calibration import calibration_page

        target, page = request.target, calibration_page(request)
    else:
        target, page = request.artifact / REPORT, _run_page(request)
    try:
        write_atomically(target, page.encode())
    except OSError as error:
        raise ArtifactError(f"{target.name} could not be written to {target.parent}: {error.strerror}") from error
    journal.write("done", {"bytes": len(page), "seconds": time.perf_counter() - began}, durable=True)


def _run_page(request: ReportRequest) -> str:
    from worker.features.report.page import TrainingRecord, render

    manifest = read_manifest(request.artifact)
    if manifest is None:
        raise ArtifactError(f"{request.artifact} holds no whole model")
    try:
        record = TypeAdapter(TrainingRecord).validate_json(json.dumps(manifest))
    except ValidationError as error:
        raise ArtifactError(f"the manifest in {request.artifact} is of another version: {error}") from error
    return render(request, manifest, record)


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
