"""The child that makes the report of a run: it reads what lies beside the model, and leaves one page there."""

import json
import time
from typing import Final

from pydantic import TypeAdapter, ValidationError

from training.artifacts.publish import read_manifest
from training.errors import ArtifactError
from training.process.child import StopFlag, run_child
from training.process.journal import JournalWriter
from training.system.atomic_files import write_atomically
from worker.report.request import REPORT, REQUEST, ReportRequest

MODULE: Final = "worker.report.child"


def run(request: ReportRequest, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Make the page and record `done` with the seconds it took."""
    began = time.perf_counter()
    from worker.report.page import Told, render

    manifest = read_manifest(request.artifact)
    if manifest is None:
        raise ArtifactError(f"{request.artifact} holds no whole model")
    try:
        told = TypeAdapter(Told).validate_json(json.dumps(manifest))
    except ValidationError as error:
        raise ArtifactError(f"the manifest in {request.artifact} is of another version: {error}") from error
    page = render(request, manifest, told)
    try:
        write_atomically(request.artifact / REPORT, page.encode())
    except OSError as error:
        raise ArtifactError(f"{REPORT} could not be written to {request.artifact}: {error.strerror}") from error
    journal.write("done", {"bytes": len(page), "seconds": time.perf_counter() - began}, durable=True)


if __name__ == "__main__":
    run_child(REQUEST, run)
