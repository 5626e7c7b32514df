"""The child process that uploads a finished model with fsspec."""

from collections.abc import Callable
from typing import Final, NoReturn

from preflight.config.secrets import redact_urls
from preflight.files.journal import JournalWriter
from preflight.object_store import open_url
from training.process.child_main import serve_request
from worker.config.settings import load
from worker.features.exporters.base import REQUEST, ExportRequest
from worker.features.exporters.upload import probe_store, upload_model

WITH_DIRECTORIES: Final = ("file", "local", "ftp", "sftp", "ssh", "smb", "webdav", "hdfs", "webhdfs", "arrow_hdfs")
"""Schemes whose directories have to be made; on the others, a misspelt bucket must not be created."""


def run(request: ExportRequest, journal: JournalWriter, should_stop: Callable[[], bool]) -> None:  # noqa: ARG001 - every child's signature
    """Upload, and write `done` with the URL; each failed try is a `retry`."""
    settings = load()
    url = settings.artifact_url or ""
    scheme = url.partition(":")[0]
    store, root = open_url(url, "PREFLIGHT_ARTIFACT_URL", other_than=settings.artifact_dir)
    make_directories = scheme in WITH_DIRECTORIES
    if request.artifact is None:
        if request.connect:
            probe_store(store, root, journal, make_directories=make_directories)
        journal.write("done", {}, durable=True)
        return
    upload_model(store, f"{root}/{request.job_id}", request.artifact, journal, make_directories=make_directories)
    address = f"{redact_urls(url).rstrip('/')}/{request.job_id}"
    journal.write("done", {"artifact_url": address}, durable=True)


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
