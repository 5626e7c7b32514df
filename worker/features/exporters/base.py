"""Export a finished model: a child process for each destination, which retries until its time limit.

An unavailable destination neither delays nor fails a job: the model on the local disk is the result.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from preflight.config.secrets import redact_urls
from preflight.errors import ArtifactError, PreflightError, error_from_reason
from preflight.files.journal import Record
from training.process.runner import run_child
from worker.config.settings import Settings, export_environment
from worker.features.exporters.refusals import NO_CHECKSUMS

IMPORT_TIMEOUT: Final = 60.0
"""Seconds for a child to import its packages."""
PROBE_TIMEOUT: Final = 20.0
"""Seconds for a destination's answer to `preflight doctor`."""
OWN_STORES: Final = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "FSSPEC_S3_ENDPOINT_URL")
"""Variables that name a store with S3's API that is not Amazon's; many know no checksums of requests."""
MLFLOW_DEFAULTS: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""Defaults of MLflow's client: `retry_export` retries."""

Destination = Literal["upload", "mlflow"]
"""`upload`: an object store; `mlflow`: an MLflow server."""


@validated(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ExportRequest:
    """Request to a child; the destination, which may hold a password, is in its environment and not in this file."""

    job_id: str = ""
    artifact: Path | None = None
    """Directory of the finished model; None: only validate the destination's URL and packages."""
    job: Path | None = None
    """Directory of the job's attempts, where it still exists."""
    connect: bool = False
    """Whether to ask the destination if it takes models; for a request without an artifact."""


REQUEST = TypeAdapter(ExportRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A destination of finished models."""

    name: Destination
    url: str
    """URL of the destination, without a password."""
    environment: Mapping[str, str]
    """Environment of the child process."""
    timeout: float
    """Seconds after which the export is given up."""
    redact: Callable[[str], str]
    """Removes secrets from the child's messages."""

    def send(self, request: ExportRequest, directory: Path, tick: Callable[[], None]) -> dict[str, JsonValue]:
        """Run the child, with its files in `directory`; returns the fields that it adds to the job's result.

        `tick` is called regularly; an exception of it ends the child.

        Raises:
            ArtifactError: the export failed, or took too long.
            PreflightError: a permanent error, or one of `tick`.
        """
        deadline, last_error = time.monotonic() + self.timeout, "it did not answer"

        def check_deadline() -> None:
            tick()
            if time.monotonic() > deadline:
                raise ArtifactError(f"{self.url} took more than {self.timeout:g} s: {last_error}")

        def note_error(record: Record) -> None:
            nonlocal last_error
            last_error = str(record.payload["message"])

        try:
            return run_child(
                f"worker.features.exporters.{self.name}_child", REQUEST.dump_json(request), directory, self.environment,
                task="upload", check=check_deadline, on_record=note_error,
            )  # fmt: skip
        except OSError as error:
            raise ArtifactError(f"{directory} cannot be written ({error.strerror}); make room there") from error
        except PreflightError as error:
            raise error_from_reason(error.reason, self.redact(error.message), error.field) from error


def exports(settings: Settings) -> list[Export]:
    """Return the destinations of `settings`."""
    destinations: tuple[tuple[Destination, str | None, Mapping[str, str]], ...] = (
        ("upload", settings.artifact_url, _store_environment(settings)),
        ("mlflow", settings.mlflow_uri,
         {**MLFLOW_DEFAULTS, **export_environment(settings, "mlflow_uri", "mlflow_experiment")}),
    )  # fmt: skip
    return [
        Export(
            name=name, url=redact_urls(url), environment=environment, timeout=settings.export_seconds,
            redact=settings.redact,
        )
        for name, url, environment in destinations if url is not None
    ]  # fmt: skip


def _store_environment(settings: Settings) -> Mapping[str, str]:
    own = export_environment(settings, "artifact_url", "artifact_dir")
    return {**NO_CHECKSUMS, **own} if any(own.get(name) for name in OWN_STORES) else own


def probe(export: Export) -> None:
    """Ask a destination whether it takes models, once and from a child.

    Raises:
        InvalidConfig, MissingPackage: as `require_usable`.
        ArtifactError: the destination takes none, or does not answer in time.
    """
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        replace(export, timeout=PROBE_TIMEOUT).send(ExportRequest(connect=True), Path(directory), lambda: None)


def require_usable(export: Export) -> None:
    """Validate a destination's URL and packages in a child, offline.

    Raises:
        InvalidConfig: the URL is invalid.
        MissingPackage: a package for it is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        replace(export, timeout=IMPORT_TIMEOUT).send(ExportRequest(), Path(directory), lambda: None)
