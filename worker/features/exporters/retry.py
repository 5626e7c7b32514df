"""Retries of an export, in its child process."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from preflight.errors import ArtifactError, PreflightError
from preflight.files.journal import RecordWriter
from preflight.object_store import describe_error
from preflight.redis.retry import backoff
from worker.features.exporters.refusals import explain_permanent

BASE_PAUSE_SECONDS: Final = 0.5
"""Longest pause before the second try."""
MAX_PAUSE_SECONDS: Final = 30.0
PERMANENT_ERRORS: Final = (FileNotFoundError, PermissionError, NotImplementedError, ImportError)
"""Missing bucket, missing permission, read-only file system, missing package."""

T = TypeVar("T")


def retry_export(action: Callable[[], T], report: RecordWriter) -> T:
    """Return the result of `action`, retried until it succeeds or the parent ends this process.

    Raises:
        PreflightError: `action` raised it, or a permanent error.
    """
    pauses = backoff(BASE_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
    while True:
        try:
            return action()
        except PreflightError:
            raise
        except Exception as error:  # each service has its own exceptions
            why = explain_permanent(error)
            if why is not None:
                raise ArtifactError(f"{why} ({describe_error(error)})") from error
            if isinstance(error, PERMANENT_ERRORS):
                raise ArtifactError(describe_error(error)) from error
            report.write("retry", {"message": describe_error(error)})
        time.sleep(next(pauses))
