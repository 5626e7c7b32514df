"""Where a finished model also goes: to each place by a child of its own, which tries until its time is over.

So a place that is away, slow or silent costs a job seconds, and never its end: the model on this disk is its result.
"""

import random
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from pydantic import ConfigDict, JsonValue, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from training.errors import ArtifactError, PreflightError, named
from training.process.child import Child, follow
from training.process.journal import Report
from worker.config.settings import Settings, export_environment, without_password

FIRST_PAUSE: Final = 0.5
"""Seconds before the second try, at most."""
LONGEST_PAUSE: Final = 30.0
"""Seconds between two tries, once the pauses have grown, at most."""
LONGEST_TROUBLE: Final = 300
"""Characters that are passed on of what a service said."""
START_SECONDS: Final = 60.0
"""Within which a child has imported what it needs, or never will."""
HOPELESS: Final = (FileNotFoundError, PermissionError, NotImplementedError, ImportError)
"""What no further try mends: no such bucket, no right to it, nothing that can be written to."""
MLFLOW: Final = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_DISABLE_TELEMETRY": "true"}
"""For MLflow's client, unless the environment says otherwise: the tries are ours, and nobody else hears of them."""

T = TypeVar("T")


@validated(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class ExportRequest:
    """What a child shall send. Where to, its environment says: that may hold a password, and this goes into a file."""

    job_id: str = ""
    artifact: Path | None = None
    """The directory of the finished model; None: only see whether the place can be used at all."""
    job: Path | None = None
    """What the attempts of the job left, if it is still there."""


REQUEST = TypeAdapter(ExportRequest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A place that finished models go to."""

    where: str
    """Its URL, without a password."""
    module: str
    """Of the child that sends them there."""
    environment: Mapping[str, str]
    """Of that child."""
    seconds: float
    """Longest time that it may take."""
    scrubbed: Callable[[str], str]
    """Takes the secrets out of what the child says."""

    def send(self, request: ExportRequest, directory: Path, look: Callable[[], None]) -> dict[str, JsonValue]:
        """Have a child carry out `request`, and return what that adds to the job's result.

        Args:
            request: what to send.
            directory: existing, for the child's files.
            look: called all the while; what it raises ends the child.

        Raises:
            ArtifactError: the place did not take it within its time.
            PreflightError: it never will, or `look` raised it.
        """
        deadline, trouble = time.monotonic() + self.seconds, "it did not answer"

        def look_within_time() -> None:
            look()
            if time.monotonic() > deadline:
                raise ArtifactError(f"{self.where} took more than {self.seconds:g} s: {trouble}")

        try:
            with Child(self.module, REQUEST.dump_json(request), directory, self.environment) as child:
                for record in follow(child, look_within_time):
                    if record.kind == "done":
                        return record.payload
                    trouble = str(record.payload["message"])
        except OSError as error:
            raise ArtifactError(f"{directory} cannot be written ({error.strerror}); make room there") from error
        except PreflightError as error:
            raise named(error.reason, self.scrubbed(error.message), error.field) from error
        raise AssertionError("follow() ends with `done` or raises")


def exports(settings: Settings) -> list[Export]:
    """Return the places that `settings` name."""
    found = []
    if settings.artifact_url is not None:
        found.append(
            Export(
                where=without_password(settings.artifact_url),
                module="worker.exporters.upload_child",
                environment=export_environment(settings, "artifact_url", "artifact_dir"),
                seconds=settings.export_seconds,
                scrubbed=settings.scrubbed,
            )
        )
    if settings.mlflow_uri is not None:
        found.append(
            Export(
                where=without_password(settings.mlflow_uri),
                module="worker.exporters.mlflow_child",
                environment={**MLFLOW, **export_environment(settings, "mlflow_uri", "mlflow_experiment")},
                seconds=settings.export_seconds,
                scrubbed=settings.scrubbed,
            )
        )
    return found


def see_that_usable(export: Export) -> None:
    """See that a child can do with a place what it shall do later; the place itself is not asked.

    Raises:
        InvalidConfig: its URL means nothing.
        MissingPackage: what speaks to it is not installed.
    """
    with tempfile.TemporaryDirectory(prefix="preflight-") as directory:
        replace(export, seconds=START_SECONDS).send(ExportRequest(), Path(directory), lambda: None)


def persist(action: Callable[[], T], report: Report) -> T:
    """Return what `action` returns, in a child: it is tried until that works, or the parent ends the child.

    Raises:
        PreflightError: `action` raised it, or what no further try mends.
    """
    pause = FIRST_PAUSE
    while True:
        try:
            return action()
        except PreflightError:
            raise
        except HOPELESS as error:
            raise ArtifactError(trouble(error)) from error
        except Exception as error:  # every service has its own kinds
            report.write("retry", {"message": trouble(error)})
        time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - it shall only differ from that of other workers
        pause = min(2 * pause, LONGEST_PAUSE)


def trouble(error: Exception) -> str:
    """Return an error of another library as a clause, without the password of a URL that it may quote."""
    return without_password(f"{type(error).__name__}: {' '.join(str(error).split())}")[:LONGEST_TROUBLE]
