"""The child process that uploads a finished model with fsspec."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

from preflight.config.secrets import redact_urls
from preflight.errors import InvalidConfig, MissingPackage
from preflight.files.journal import JournalWriter
from preflight.packages import how_to_install
from training.process.child_main import serve_request
from worker.config.settings import load
from worker.features.exporters.base import REQUEST, ExportRequest
from worker.features.exporters.retry import describe_error
from worker.features.exporters.upload import FileSystem, probe_store, upload_model

WITH_DIRECTORIES: Final = ("file", "local", "ftp", "sftp", "ssh", "smb", "webdav", "hdfs", "webhdfs", "arrow_hdfs")
"""Schemes whose directories have to be made; on the others, a misspelt bucket must not be created."""


def run(request: ExportRequest, journal: JournalWriter, should_stop: Callable[[], bool]) -> None:  # noqa: ARG001 - every child's signature
    """Upload, and write `done` with the URL; each failed try is a `retry`."""
    settings = load()
    url = settings.artifact_url or ""
    scheme = url.partition(":")[0]
    store, root = open_store(url, scheme, settings.artifact_dir)
    make_directories = scheme in WITH_DIRECTORIES
    if request.artifact is None:
        if request.connect:
            probe_store(store, root, journal, make_directories=make_directories)
        journal.write("done", {}, durable=True)
        return
    upload_model(store, f"{root}/{request.job_id}", request.artifact, journal, make_directories=make_directories)
    address = f"{redact_urls(url).rstrip('/')}/{request.job_id}"
    journal.write("done", {"artifact_url": address}, durable=True)


def open_store(url: str, scheme: str, artifact_dir: Path) -> tuple[FileSystem, str]:
    """Return the file system of `url`, and the path in it.

    Raises:
        InvalidConfig: fsspec does not support the URL, or it is `artifact_dir` itself.
        MissingPackage: fsspec, or the package for this kind of URL, is not installed.
    """
    try:
        from fsspec.core import url_to_fs

        store, path = url_to_fs(url)
    except ImportError as error:
        raise MissingPackage(
            f"PREFLIGHT_ARTIFACT_URL is a {scheme} URL, which needs a package that is not installed "
            f"({describe_error(error)}); for S3: {how_to_install('s3')}"
        ) from error
    except Exception as error:  # each file system validates its options differently
        raise InvalidConfig(
            f"PREFLIGHT_ARTIFACT_URL is a {scheme} URL that fsspec cannot use ({describe_error(error)}); "
            "write e.g. s3://bucket/prefix"
        ) from error
    if scheme in ("file", "local") and Path(path).resolve() == artifact_dir.resolve():
        raise InvalidConfig(f"PREFLIGHT_ARTIFACT_URL is {artifact_dir}, the artifact directory; use another directory")
    return store, str(path).rstrip("/")


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
