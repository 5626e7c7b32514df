"""The union of all events, their form in a Redis stream, and the status that each brings about."""

import json
from typing import Annotated, Final

from pydantic import ConfigDict, Field, TypeAdapter

from preflight.wire.base import Event, Status
from preflight.wire.lifecycle_events import (
    ArtifactUploaded,
    CheckpointSaved,
    DatasetReady,
    JobCancelled,
    JobFailed,
    JobInterrupted,
    JobResumed,
    JobStarted,
    JobWarning,
    MemoryRanOut,
    OnnxReady,
    ReportReady,
    ResourceLimits,
    TrainingDone,
)
from preflight.wire.plan_events import (
    BatchAdvice,
    CalibrationTrial,
    CalibrationWinner,
    LoaderConfig,
    MemoryProbed,
    PlanAdapted,
    PlanFields,
    ProcessorsShared,
    TrainingConfig,
)
from preflight.wire.training_events import (
    EpochDone,
    GroupChanged,
    GroupFormed,
    GroupMeasured,
    GroupShort,
    ModelBuilt,
    ModelInitialized,
    PredictionChecked,
    Progress,
    TrainingProfile,
)

AnyEvent = Annotated[
    JobStarted
    | ResourceLimits
    | DatasetReady
    | MemoryProbed
    | CalibrationTrial
    | CalibrationWinner
    | BatchAdvice
    | TrainingConfig
    | LoaderConfig
    | GroupFormed
    | GroupMeasured
    | GroupChanged
    | GroupShort
    | ModelBuilt
    | ModelInitialized
    | Progress
    | EpochDone
    | PredictionChecked
    | PlanAdapted
    | ProcessorsShared
    | CheckpointSaved
    | JobResumed
    | MemoryRanOut
    | JobInterrupted
    | TrainingProfile
    | TrainingDone
    | OnnxReady
    | ReportReady
    | ArtifactUploaded
    | JobFailed
    | JobCancelled
    | JobWarning,
    Field(discriminator="type"),
]
EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent, config=ConfigDict(defer_build=True))

LIFECYCLE_EVENTS: Final = (
    "job_started", "calibration_winner", "group_formed", "group_measured", "group_changed", "group_short",
    "job_resumed", "out_of_memory", "job_interrupted", "training_done", "job_failed", "job_cancelled",
)  # fmt: skip
"""Types of the events that are also in the stream that is never trimmed."""
STATUS_BY_EVENT: Final[dict[str, Status]] = {
    "job_started": "running", "job_interrupted": "queued", "group_short": "queued",
    "training_done": "finished", "job_failed": "failed", "job_cancelled": "cancelled",
}  # fmt: skip
"""Event type -> status of the job after it."""
ACTIVE_STATUSES: Final[tuple[Status, ...]] = ("queued", "running")
TERMINAL_EVENTS: Final = tuple(kind for kind, status in STATUS_BY_EVENT.items() if status not in ACTIVE_STATUSES)
"""Types of the events that end an attempt."""
EXTRA_EVENTS: Final = ("onnx_ready", "report_ready", "artifact_uploaded")
"""Types of events that may follow `training_done`."""


def build_events() -> None:
    """Build the models of all events, so that each fork of this process has them."""
    EVENT.rebuild()
    for model in (*Event.__subclasses__(), *PlanFields.__subclasses__()):
        model.model_rebuild()


def follows_end(event: AnyEvent, last: AnyEvent | None) -> bool:
    """Whether an event is about the extras after `last`, the end of a job: one of theirs, or a warning."""
    has_ended = last is not None and last.type in TERMINAL_EVENTS
    return event.type in EXTRA_EVENTS or (has_ended and event.type == "warning")


def flatten(event: Event) -> dict[str, str]:
    """Return the event as the flat fields of a Redis stream record; null fields are left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in event.model_dump(mode="json").items()
        if value is not None
    }


def unflatten(fields: dict[str, str]) -> AnyEvent:
    """Return the event in a stream record, without fields of newer versions.

    Raises:
        pydantic.ValidationError: it is not an event.
    """
    return EVENT.validate_python(fields, extra="ignore")
