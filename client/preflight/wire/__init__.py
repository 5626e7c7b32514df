"""The contract: jobs, events, states and results as pydantic models."""

from preflight.wire.base import (
    CONTRACT_VERSION,
    EVENTS_KEPT,
    FUNCTION,
    JOB_ID_PATTERN,
    JOB_TIMEOUT,
    JOB_TYPE,
    MAX_JOB_BYTES,
    MAX_TEXT_LENGTH,
    MAX_WORKERS,
    ROUNDED,
    STATE_TTL,
    Count,
    Event,
    JobId,
    Label,
    Seconds,
    Share,
    Status,
    Text,
    Timestamp,
    is_job_id,
)
from preflight.wire.events import (
    ACTIVE_STATUSES,
    EVENT,
    EXTRA_EVENTS,
    LIFECYCLE_EVENTS,
    STATUS_BY_EVENT,
    TERMINAL_EVENTS,
    AnyEvent,
    build_events,
    flatten,
    follows_end,
    unflatten,
)
from preflight.wire.job import GroupSize, OwnPlan, TrainJob
from preflight.wire.job_parsing import encode_job, parse_job, read_job
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
    TrainingConfig,
)
from preflight.wire.results import JobState, TrainResult, read_result
from preflight.wire.training_events import (
    EpochDone,
    GroupChanged,
    GroupEvent,
    GroupFormed,
    GroupMeasured,
    GroupShort,
    ModelBuilt,
    PredictionChecked,
    Progress,
    StepProfile,
    TrainingProfile,
)

__all__ = (
    "ACTIVE_STATUSES", "CONTRACT_VERSION", "EVENT", "EVENTS_KEPT", "EXTRA_EVENTS", "FUNCTION", "JOB_ID_PATTERN",
    "JOB_TIMEOUT", "JOB_TYPE", "LIFECYCLE_EVENTS", "MAX_JOB_BYTES", "MAX_TEXT_LENGTH", "MAX_WORKERS", "ROUNDED",
    "STATE_TTL", "STATUS_BY_EVENT", "TERMINAL_EVENTS", "AnyEvent", "ArtifactUploaded", "BatchAdvice",
    "CalibrationTrial", "CalibrationWinner", "CheckpointSaved", "Count", "DatasetReady", "EpochDone", "Event",
    "GroupChanged", "GroupEvent", "GroupFormed", "GroupMeasured", "GroupShort", "GroupSize", "JobCancelled",
    "JobFailed", "JobId", "JobInterrupted", "JobResumed", "JobStarted", "JobState", "JobWarning", "Label",
    "LoaderConfig", "MemoryProbed", "MemoryRanOut", "ModelBuilt", "OnnxReady", "OwnPlan", "PlanAdapted", "PlanFields",
    "PredictionChecked", "Progress", "ReportReady", "ResourceLimits", "Seconds", "Share", "Status", "StepProfile",
    "Text", "Timestamp", "TrainJob", "TrainResult", "TrainingConfig", "TrainingDone", "TrainingProfile", "build_events",
    "encode_job", "flatten", "follows_end", "is_job_id", "parse_job", "read_job", "read_result",
    "unflatten",
)  # fmt: skip
