"""Base model, bounded and rounded field types, and constants of the contract."""

import math
import re
from typing import Annotated, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    model_validator,
)

from preflight.contract.spec import MAX_CLASSES
from preflight.redis.untrusted.values import as_json

CONTRACT_VERSION: Final = "1"
"""Version of the contract and of the routes under /v1; a version only gains fields."""
JOB_TYPE: Final = "preflight.train.v1"
FUNCTION: Final = "worker.jobs.train"
"""The only function that a queue may name."""
MAX_JOB_BYTES: Final = 64 * 1024
"""Most bytes of a job as JSON."""
MAX_TEXT_LENGTH: Final = 2_000
MAX_WORKERS: Final = 64
"""Workers that may train one job together."""
JOB_TIMEOUT: Final = 6 * 3600
"""Default limit of a job's duration, seconds; RQ's default of 180 is too short."""
STATE_TTL: Final = 7 * 86_400
"""Default time to live of a job's events, state and result after its last update, seconds."""
EVENTS_KEPT: Final = 10_000
"""Default length of a job's event stream; a long job writes two events per second."""

ROUNDED: Final = "rounded"
"""Context of a validation that rounds."""

JOB_ID_PATTERN: Final = r"^[A-Za-z0-9._-]{1,64}$"
DIRECTORIES: Final = (".", "..")
"""Texts that match `JOB_ID_PATTERN` and are not job ids."""

Status = Literal["queued", "running", "finished", "failed", "cancelled", "unknown"]
JobId = Annotated[str, Field(pattern=JOB_ID_PATTERN)]
Version = Annotated[int, Field(ge=1, le=1)]
Count = Annotated[int, Field(ge=0, le=2**53)]
"""2**53: the largest integer that every JSON reader keeps exact."""
RENAMED: Final = {
    "seconds": "took_s", "train_seconds": "train_s", "calibration_seconds": "calibration_s",
    "import_seconds": "import_s", "bytes": "checkpoint_bytes", "memory_mb": "memory_mib",
    "used_memory_mb": "used_memory_mib",
}  # fmt: skip
"""Name until 0.27 -> name. 0.28 wrote both; records of those versions stay readable."""


def rounded(digits: int, decimals: int) -> AfterValidator:
    """Round a field to its accuracy: to `digits` significant digits or `decimals` places, whichever keeps more.

    Only in the context `ROUNDED`, by a worker: a reader takes every figure as it came.
    """

    def to_known(value: float, info: ValidationInfo) -> float:
        if not value or info.context != ROUNDED:
            return value
        return round(value, max(decimals, digits - 1 - math.floor(math.log10(abs(value)))))

    return AfterValidator(to_known)


def parse_json(value: object) -> object:
    """Return the value of a JSON text: state and stream records have texts only. Raises `ValueError`."""
    return as_json(value, MAX_JOB_BYTES) if isinstance(value, str) else value


Timestamp = Annotated[float, Field(ge=0, le=1e10)]
"""Seconds since the epoch; not rounded: they order events."""
Seconds = Annotated[float, Field(ge=0, le=1e10), rounded(4, 2)]
"""A duration: 12.35, 0.01153."""
Rate = Annotated[float, Field(ge=0, le=1e15), rounded(4, 0)]
"""Samples in a second, cores: 13508, 1.5."""
Ratio = Annotated[float, Field(ge=0, le=1e15), rounded(3, 2)]
"""Times as fast: 1.77."""
Share = Annotated[float, Field(ge=0, le=1), rounded(4, 5)]
"""A share: 0.9947; a test set of 60,000 samples has a fifth decimal."""
Loss = Annotated[float, Field(ge=0, le=1e300), rounded(5, 4)]
Deviation = Annotated[float, Field(ge=-1, le=1e15), rounded(2, 3)]
Text = Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]
Label = Annotated[str, Field(max_length=256)]
Members = Annotated[tuple[Label, ...], Field(max_length=MAX_WORKERS), BeforeValidator(parse_json)]
"""Names of workers; where they are a group, by rank, the leader first."""
Rates = Annotated[tuple[Rate, ...], Field(max_length=MAX_WORKERS), BeforeValidator(parse_json)]
Counts = Annotated[tuple[Count, ...], Field(max_length=MAX_WORKERS), BeforeValidator(parse_json)]
"""A count for each member, by rank."""
ClassShares = Annotated[tuple[Share | None, ...], Field(max_length=MAX_CLASSES), BeforeValidator(parse_json)]
"""A share for each class, by its number; null: not defined."""
ClassNames = Annotated[
    tuple[Annotated[str, Field(max_length=128)], ...], Field(max_length=MAX_CLASSES), BeforeValidator(parse_json)
]
"""Name of each class of imported data, by its number."""
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Wire(BaseModel):
    """Base of every model of the contract; each is built at its first use, as a process uses few of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _read_former_names(cls, fields: object) -> object:
        """Take values that an earlier version wrote under a field's former name, or under both names."""
        if not isinstance(fields, dict):
            return fields
        former = {old: new for old, new in RENAMED.items() if old in fields and new in cls.model_fields}
        if not former:
            return fields
        renamed = {new: fields[old] for old, new in former.items()}
        return renamed | {name: value for name, value in fields.items() if name not in former}


def is_job_id(text: str) -> bool:
    """Whether `text` can be a job id: 1 to 64 letters, digits, `.`, `_`, `-`, but not `.` or `..`."""
    return re.fullmatch(JOB_ID_PATTERN, text) is not None and text not in DIRECTORIES


def require_tags(schema: dict[str, JsonValue]) -> None:
    """Make `v` and `type` required in a JSON schema; their defaults are only for Python."""
    properties, required = schema["properties"], schema.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list):
        renamed = {*RENAMED.values()} if "job_id" in properties else set()  # earlier versions wrote the old name
        listed = [name for name in required if name not in renamed]
        schema["required"] = [*(name for name in ("v", "type") if name in properties), *listed]


class Event(Wire):
    """Base of all events of a job."""

    model_config = ConfigDict(json_schema_extra=require_tags)

    v: Version = 1
    seq: Count
    """Sequence number within the attempt."""
    job_id: JobId
    attempt: Count
    """Number of the attempt that published the event, from 1."""
    ts: Timestamp
    """Time of the event, seconds since the epoch."""
