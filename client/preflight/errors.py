"""Failures of a job, one class per named reason.

Every message is one sentence that says what is wrong, with which value, against which bound, and what to do.
`reason` is the name under which the failure travels: in events, in the job's state and in exit messages.
"""

from typing import ClassVar


class PreflightError(Exception):
    """Base of every failure that has a name."""

    reason: ClassVar[str] = "internal_error"
    retry: ClassVar[bool] = False
    """Whether running the same job again could end otherwise."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidConfig(PreflightError):
    """The request cannot be carried out as written; a retry would not help."""

    reason = "invalid_config"


class DatasetError(PreflightError):
    """A data set is missing, damaged or cannot be fetched; `field` names the file or data set."""

    reason = "dataset_error"


class MissingPackage(PreflightError):
    """A package that training needs is not installed."""

    reason = "missing_package"


class Diverged(PreflightError):
    """The loss, or a tensor that a checkpoint would keep, became NaN or infinite."""

    reason = "diverged"


class ArtifactError(PreflightError):
    """The trained model could not be written."""

    reason = "artifact_error"
    retry = True


class OutOfMemory(PreflightError):
    """Memory ran out, and smaller micro-batches did not help."""

    reason = "out_of_memory"


class ChildFailed(PreflightError):
    """A child process ended without a result."""

    reason = "child_failed"
    retry = True


class ChildKilled(ChildFailed):
    """A child process was ended by a signal; a retry resumes from its last checkpoint."""


class ChildStopped(ChildKilled):
    """A child process saved and ended at a stop signal; whether it was its parent's, the parent knows."""

    reason = "child_stopped"


class GroupShort(PreflightError):
    """Fewer workers came together than a job asks for; it goes back to its queue."""

    reason = "group_short"
    retry = True


class TimedOut(PreflightError):
    """The job ran longer than its `job_timeout`."""

    reason = "timeout"


class Cancelled(PreflightError):
    """Somebody asked for the job to stop."""

    reason = "cancelled"


ERRORS_BY_REASON: dict[str, type[PreflightError]] = {
    kind.reason: kind
    for kind in (
        InvalidConfig,
        DatasetError,
        MissingPackage,
        Diverged,
        ArtifactError,
        OutOfMemory,
        ChildFailed,
        ChildStopped,
        GroupShort,
        TimedOut,
        Cancelled,
    )
}
"""Reason -> class, so that a failure recorded by a child is raised under its own name by the parent."""


def error_from_reason(reason: str, message: str, field: str | None = None) -> PreflightError:
    """Return the exception for a recorded `reason`; an unknown one is an internal error."""
    return ERRORS_BY_REASON.get(reason, PreflightError)(message, field=field)
