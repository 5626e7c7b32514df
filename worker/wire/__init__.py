"""What goes over the wire: the job, every event, the state and the result, as pydantic models.

The JSON Schemas in `docs/schemas/` are written from these (`python -m worker.wire.json_schema`); a test holds them
equal.
"""

import hashlib
import json
import re
from functools import cache
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from calibration.result import Confidence, Verdict
from calibration.result import Knob as TrialKnob
from training.config import spec
from training.config.plan import (
    Affinity,
    Allocator,
    Device,
    LoaderWorkers,
    MemoryFormat,
    Plan,
    Precision,
    PrefetchFactor,
    Threads,
)
from training.config.recipes import FREE, RECIPES, RecipeName, see_that_agrees
from training.config.registry import DATASETS, MODELS, require
from training.config.spec import DEFAULTS, Augmentation, TrainSpec
from training.errors import InvalidConfig
from worker.wire.validation_errors import explain

CONTRACT: Final = "1"
"""Version of all that follows, and of the routes under /v1: they are added to, and nothing is taken away."""
JOB_TYPE: Final = "preflight.train.v1"
FUNCTION: Final = "worker.jobs.train"
"""The one function that a queue may name."""
LARGEST_JOB: Final = 64 * 1024
"""Bytes of a job as JSON."""

ID_PATTERN: Final = r"^[A-Za-z0-9._-]{1,64}$"
JOB_TIMEOUT: Final = 6 * 3600
"""Seconds after which a job is given up, unless its producer says otherwise; RQ's own 180 are too few."""
STATE_TTL: Final = 7 * 86_400
"""Seconds for which events, state and result of a job are kept after its last sign of life."""
EVENTS_KEPT: Final = 10_000
"""Newest records kept in a job's event stream; a long job says two a second."""

Knob = Literal[
    "allocator", "precision", "threads", "micro_batch", "eval_batch", "loader", "affinity", "interop", "compile"
]
"""Parts of a plan that calibration can decide: those of its trials, but for `own`, which turns nothing."""

JobId = Annotated[str, Field(pattern=ID_PATTERN)]
Version = Annotated[int, Field(ge=1, le=1)]
Count = Annotated[int, Field(ge=0, le=2**53)]
"""2**53: the largest whole number that every JSON reader keeps exact."""
Seconds = Annotated[float, Field(ge=0, le=1e10)]
Rate = Annotated[float, Field(ge=0, le=1e15)]
Share = Annotated[float, Field(ge=0, le=1)]
Loss = Annotated[float, Field(ge=0, le=1e300)]
Deviation = Annotated[float, Field(ge=-1, le=1e15)]
LONGEST_TEXT: Final = 2_000
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Label = Annotated[str, Field(max_length=256)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


DIRECTORIES: Final = (".", "..")
"""What would match the pattern of an id, and is no name."""


def is_job_id(text: str) -> bool:
    """Whether `text` can be a job's id: 1 to 64 letters, digits, `.`, `_`, `-`, and no directory."""
    return re.fullmatch(ID_PATTERN, text) is not None and text not in DIRECTORIES


class Wire(BaseModel):
    """Base of everything on the wire."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _says_what_it_is(schema: dict[str, JsonValue]) -> None:
    """Have a schema require what others tell records apart by; it has a default for those who write them here."""
    properties, required = schema["properties"], schema.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list):
        schema["required"] = [*(name for name in ("v", "type") if name in properties), *required]


class OwnPlan(Wire):
    """Parts of the plan that the user sets; where calibration is on it measures them first."""

    model_config = ConfigDict(strict=True)

    threads: Threads | None = None
    interop: Threads | None = None
    micro_batch: spec.BatchSize | None = None
    eval_batch: spec.BatchSize | None = None
    loader_workers: LoaderWorkers | None = None
    prefetch_factor: PrefetchFactor | None = None
    precision: Precision | None = None
    memory_format: MemoryFormat | None = None
    allocator: Allocator | None = None
    affinity: Affinity | None = None
    compile: bool | None = None
    device: Device | None = None

    def complete(self, train_spec: TrainSpec, cores: int) -> Plan:
        """Return the whole plan: what is set here, and plain torch on all cores for the rest."""
        own = self.model_dump(exclude_none=True)
        try:
            return Plan(**{"threads": cores, "micro_batch": train_spec.batch_size, **own})
        except ValidationError as error:
            raise explain(error, OwnPlan.model_json_schema()) from error


def _recipes_decide(schema: dict[str, JsonValue]) -> None:
    """Have a job's schema say what a recipe decides, which is checked across fields."""
    decided = {name: SPEC.dump_python(recipe, mode="json", exclude={*FREE}) for name, recipe in RECIPES.items()}
    schema["allOf"] = [
        {
            "if": {"required": ["recipe"], "properties": {"recipe": {"const": name}}},
            "then": {"properties": {field: {"const": value} for field, value in fields.items()}},
        }
        for name, fields in decided.items()
    ]


class TrainJob(Wire):
    """A request to train. `type` and `dataset` are needed; everything else has a default."""

    model_config = ConfigDict(strict=True, title="TrainJob", json_schema_extra=_recipes_decide)

    type: Literal["preflight.train.v1"]
    job_id: Annotated[JobId | None, Field(json_schema_extra={"not": {"enum": list(DIRECTORIES)}})] = None
    """Idempotency key; RQ's job id when absent."""
    dataset: spec.Name
    recipe: RecipeName | None = None
    """What to train with, under one name: fields that it decides are left out, or have its values."""
    model: spec.Name = DEFAULTS.model
    epochs: spec.Epochs = DEFAULTS.epochs
    batch_size: spec.BatchSize = DEFAULTS.batch_size
    optimizer: spec.Optimizer = DEFAULTS.optimizer
    learning_rate: spec.LearningRate = DEFAULTS.learning_rate
    momentum: spec.Momentum = DEFAULTS.momentum
    weight_decay: spec.WeightDecay = DEFAULTS.weight_decay
    schedule: spec.Schedule = DEFAULTS.schedule
    warmup: spec.Warmup = DEFAULTS.warmup
    step_epochs: spec.StepEpochs = DEFAULTS.step_epochs
    step_factor: spec.StepFactor = DEFAULTS.step_factor
    label_smoothing: spec.LabelSmoothing = DEFAULTS.label_smoothing
    gradient_clip: spec.GradientClip = DEFAULTS.gradient_clip
    patience: spec.Patience | None = DEFAULTS.patience
    validation_samples: spec.ValidationSamples | None = DEFAULTS.validation_samples
    seed: spec.Seed = DEFAULTS.seed
    augmentation: Augmentation = DEFAULTS.augmentation
    deterministic: bool = DEFAULTS.deterministic
    """The plan is fixed for the whole job; weights equal any other such run's with the same plan, bit for bit."""
    calibrate: bool = True
    """Whether to look for a faster plan than the user's own."""
    force_calibration: bool = False
    """Measure even when a plan is cached."""
    calibration_samples: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Steps measured of each plan; null: by memory."""
    calibration_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None
    """Longest time spent measuring plans, seconds; null: as the worker is set."""
    calibration_knobs: tuple[Knob, ...] | None = None
    """Which knobs may be turned; null: all."""
    profile: bool = False
    """Measure what each phase of a step takes."""
    trace: bool = False
    """Leave a trace of a few steps beside the model, for Perfetto or Chrome."""
    onnx: bool = False
    """Leave the model as `model.onnx`, too, held against the other on the whole test set."""
    plan: OwnPlan = OwnPlan()

    @field_validator("job_id")
    @classmethod
    def _is_no_directory(cls, value: str | None) -> str | None:
        if value is not None and not is_job_id(value):
            raise ValueError("a job id names a directory of its own; use a name")
        return value

    @model_validator(mode="after")
    def _agrees_with_its_recipe(self) -> Self:
        if self.recipe is not None:
            see_that_agrees(self.recipe, {name: getattr(self, name) for name in self._given})
        return self

    @property
    def _given(self) -> set[str]:
        return {*SPEC_FIELDS} & self.model_fields_set

    def digest(self) -> str:
        """Return the SHA-256 of what is asked for, under whatever id: 64 hexadecimal digits."""
        asked = self.model_dump(mode="json", exclude={"job_id"}, exclude_defaults=True)
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def spec(self) -> TrainSpec:
        """Return the part that decides the result: what is given here, the rest from the recipe or by default."""
        rest = DEFAULTS if self.recipe is None else RECIPES[self.recipe]
        given = self.model_dump(mode="json", include=self._given)
        return SPEC.validate_json(json.dumps({**SPEC.dump_python(rest, mode="json"), **given}))


SPEC = TypeAdapter(TrainSpec)
SPEC_FIELDS: Final = frozenset(TrainSpec.__dataclass_fields__)


def parse_job(payload: object) -> TrainJob:
    """Return the job in `payload`, a JSON object as Python data.

    Raises:
        InvalidConfig: it is too large, malformed, out of bounds, or names what is not registered.
    """
    job = read_job(payload)
    require(DATASETS, "dataset", job.dataset)
    require(MODELS, "model", job.spec().model)
    return job


def read_job(payload: object) -> TrainJob:
    """Return the job in `payload`, whose data set and model may be registered elsewhere only.

    Raises:
        InvalidConfig: it is too large, malformed or out of bounds.
    """
    if not isinstance(payload, dict):
        raise InvalidConfig(f"the job is a {type(payload).__name__}, but must be an object; send a TrainJob")
    text = encode_job(payload)
    if payload.get("type") != JOB_TYPE:
        kind = ascii(payload.get("type"))[:80]
        raise InvalidConfig(f"type is {kind}, but this version reads {JOB_TYPE!r}; set it", field="type")
    try:
        return TrainJob.model_validate_json(_with_whole_numbers(text))
    except ValidationError as error:
        raise explain(error, _job_schema()) from error


@cache
def _job_schema() -> dict[str, JsonValue]:
    """Return the schema of a job; writing it takes longer than all else that a refused job costs."""
    return TrainJob.model_json_schema()


def encode_job(payload: dict[str, JsonValue]) -> str:
    """Return `payload` as JSON; raises `InvalidConfig` when it is no JSON or larger than a job may be."""
    try:
        text = json.dumps(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidConfig(f"the job is not JSON ({error}); send plain objects and numbers") from error
    if len(text) > LARGEST_JOB:
        raise InvalidConfig(f"the job is {len(text)} bytes of JSON, but may be at most {LARGEST_JOB}; shorten it")
    return text


def _with_whole_numbers(text: str) -> str:
    """Return JSON text whose whole numbers have no fraction: 201.0 is an integer in JSON Schema, 6.3."""

    def number(literal: str) -> float:
        value = float(literal)
        return int(value) if value.is_integer() and abs(value) <= 2**53 else value

    return json.dumps(json.loads(text, parse_float=number))


class Event(Wire):
    """Base of everything that is said about a job while it runs."""

    model_config = ConfigDict(json_schema_extra=_says_what_it_is)

    v: Version = 1
    seq: Count
    """Grows by one with every event of an attempt."""
    job_id: JobId
    attempt: Count
    """Number of the execution that says it, from 1."""
    ts: Seconds
    """Seconds since the epoch."""


class JobStarted(Event):
    """A worker has taken the job."""

    type: Literal["job_started"] = "job_started"
    worker: Label
    dataset: spec.Name
    recipe: RecipeName | None = None
    model: spec.Name
    epochs: spec.Epochs
    batch_size: spec.BatchSize


class ResourceLimits(Event):
    """What the container allows, and where that is written."""

    type: Literal["resource_limits"] = "resource_limits"
    cpu_cores: Count
    quota: Rate | None = None
    """CPUs of the quota; null: no quota."""
    memory_mb: Count
    """The memory budget, MiB."""
    source: Text


class DatasetReady(Event):
    """The data set lies prepared on disk."""

    type: Literal["dataset_ready"] = "dataset_ready"
    dataset: spec.Name
    train_samples: Count
    test_samples: Count
    seconds: Seconds


class PlanFields(Event):
    """The part of a plan that a person compares."""

    threads: Threads
    interop: Threads
    micro_batch: spec.BatchSize
    precision: Precision
    memory_format: MemoryFormat
    allocator: Allocator
    # The others have defaults, because records of version 0.2 are without them.
    eval_batch: spec.BatchSize = 1000
    loader_workers: LoaderWorkers = 0
    affinity: Affinity = "free"
    compile: bool = False
    device: Device = "cpu"


class CalibrationTrial(PlanFields):
    """One plan was considered; the figures are null where it could not be measured."""

    type: Literal["calibration_trial"] = "calibration_trial"
    knob: TrialKnob | None = None
    """What it turned; `own`: the user's plan, measured first."""
    predicted_epoch_s: Seconds | None = None
    step_s: Seconds | None = None
    samples_per_s: Rate | None = None
    steps: Count
    """Steps that were measured."""
    ratio: Rate | None = None
    """Speed against the best plan before it, in turns; null for the first."""
    low: Rate | None = None
    high: Rate | None = None
    """95 % interval of the ratio."""
    peak_bytes: Count | None = None
    """Most memory that the measuring process had resident."""
    won: bool
    verdict: Verdict | None = None
    note: Text


class CalibrationWinner(PlanFields):
    """The plan that the job runs under, and why."""

    type: Literal["calibration_winner"] = "calibration_winner"
    source: Literal["cache", "measured", "own", "kept"]
    why: Label
    predicted_epoch_s: Seconds | None = None
    predicted_low_s: Seconds | None = None
    predicted_high_s: Seconds | None = None
    """95 % interval of the seconds of an epoch."""
    confidence: Confidence | None = None
    """How far the prediction can be relied on; null where nothing was measured."""
    ratio: Rate | None = None
    """Speed against the user's own plan, confirmed in a fresh process."""
    max_feasible: Count | None = None
    """Largest micro-batch known to fit into memory; 0: none does."""
    cache: Literal["hit", "miss", "off"] | None = None
    calibration_seconds: Seconds
    import_seconds: Seconds
    trials: Count


class TrainingConfig(PlanFields):
    """How the training is run."""

    type: Literal["training_config"] = "training_config"
    batch_size: spec.BatchSize


class LoaderConfig(Event):
    """How batches are loaded."""

    type: Literal["dataloader_config"] = "dataloader_config"
    num_workers: LoaderWorkers
    persistent_workers: bool
    prefetch_factor: PrefetchFactor | None = None


class Progress(Event):
    """Figures of the last half second or so."""

    type: Literal["progress"] = "progress"
    epoch: spec.Epochs
    epochs: spec.Epochs
    step: Count
    steps: Count
    """Steps of an epoch."""
    loss: Loss
    accuracy: Share
    """Share of the training samples that were recognized as they were trained on."""
    samples_per_s: Rate
    eta_s: Seconds
    """Seconds of training left, at this speed."""
    used_memory_mb: Count | None = None
    """MiB that the container's processes use, without what the kernel could take back; null: not readable."""


class EpochDone(Event):
    """Figures of one epoch."""

    type: Literal["epoch_done"] = "epoch_done"
    epoch: spec.Epochs
    loss: Loss
    val_acc: Share | None = None
    """Validation accuracy; null without a validation split."""
    val_loss: Loss | None = None
    samples_per_s: Rate
    seconds: Seconds
    train_seconds: Seconds


class PredictionChecked(Event):
    """What was predicted beside what was measured: after the first steps of a process, and after each epoch."""

    type: Literal["prediction_checked"] = "prediction_checked"
    epoch: spec.Epochs
    steps: Count
    """That were measured."""
    whole: bool
    """Whether they are a whole epoch, validation included."""
    predicted_s: Seconds
    """Of all of them."""
    low_s: Seconds
    high_s: Seconds
    """95 % interval of the prediction."""
    measured_s: Seconds
    """Of all of them, loading and warming up included."""
    predicted_batch_s: Seconds
    """Per step."""
    measured_batch_s: Seconds
    """total_epoch_time / total_batches."""
    deviation: Deviation
    """measured / predicted - 1."""
    cause: Literal["noisy", "calibration", "adapted"] | None = None
    """Why it is more than 10 %: others disturbed the machine; they did not, so the calibration was wrong; the plan
    was changed on the way."""
    seen: Text = ""
    """What was seen of the cause."""


class PlanAdapted(Event):
    """The running training has changed its plan, or keeps what it tried."""

    type: Literal["plan_adapted"] = "plan_adapted"
    field: Literal["threads", "micro_batch"]
    before: Count
    after: Count
    reason: Text


class CheckpointSaved(Event):
    """Everything up to this step survives a kill."""

    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    epochs_done: Count
    steps_done: Count
    """Of the epoch after them."""
    seconds: Seconds
    """For which the training stood still."""
    bytes: Count


class JobResumed(Event):
    """The training goes on from a checkpoint."""

    type: Literal["job_resumed"] = "job_resumed"
    epochs_done: Count
    steps_done: Count
    """Of the epoch after them."""


class MemoryRanOut(Event):
    """The training was killed for memory, and goes on in smaller pieces."""

    type: Literal["out_of_memory"] = "out_of_memory"
    message: Text
    micro_batch: spec.BatchSize
    """From now on."""
    eval_batch: spec.BatchSize
    """From now on."""


class JobInterrupted(Event):
    """The worker was told to stop; the job waits at the front of its queue, its checkpoint on disk."""

    type: Literal["job_interrupted"] = "job_interrupted"
    message: Text


class StepProfile(Wire):
    """Where the time of a training went: seconds of each phase over its epochs; they add up to `total_s`."""

    steps: Count
    average_batch_s: Seconds
    """total_epoch_time / total_batches: warming up, loading and validation included."""
    total_s: Seconds
    data_s: Seconds
    """Fetching, augmenting, normalising."""
    transfer_s: Seconds
    """Moving to the device; nothing on a CPU."""
    forward_s: Seconds
    loss_s: Seconds
    backward_s: Seconds
    optimizer_s: Seconds
    validation_s: Seconds
    checkpoint_s: Seconds = 0.0
    """Keeping checkpoints and the best weights; before 0.9.0 it was part of `other_s`."""
    other_s: Seconds
    """Reports and all else."""


class TrainingProfile(Event, StepProfile):
    """Where the time went, for a job with `profile`."""

    type: Literal["training_profile"] = "training_profile"


class TrainingDone(Event):
    """The job is finished; the fields are those of its result."""

    type: Literal["training_done"] = "training_done"
    test_accuracy: Share
    test_loss: Loss
    epochs: spec.Epochs
    best_epoch: spec.Epochs
    stopped_early: bool
    train_seconds: Seconds
    samples_per_s: Rate
    predicted_epoch_s: Seconds | None = None
    measured_epoch_s: Seconds
    artifact: Text
    artifact_url: Text | None = None
    """Where the model also is."""
    model_sha256: Sha256
    report: Text | None = None
    """The page about the run; null: none was made."""
    onnx: Text | None = None
    """The model as ONNX, for a job that asked for it."""


class JobFailed(Event):
    """The job has ended without a model."""

    type: Literal["job_failed"] = "job_failed"
    reason: Label
    field: Text | None = None
    message: Text


class JobCancelled(Event):
    """The job was stopped because somebody asked for it."""

    type: Literal["job_cancelled"] = "job_cancelled"
    message: Text


class JobWarning(Event):
    """Something is not as it should be, and the job goes on."""

    type: Literal["warning"] = "warning"
    message: Text


AnyEvent = Annotated[
    JobStarted
    | ResourceLimits
    | DatasetReady
    | CalibrationTrial
    | CalibrationWinner
    | TrainingConfig
    | LoaderConfig
    | Progress
    | EpochDone
    | PredictionChecked
    | PlanAdapted
    | CheckpointSaved
    | JobResumed
    | MemoryRanOut
    | JobInterrupted
    | TrainingProfile
    | TrainingDone
    | JobFailed
    | JobCancelled
    | JobWarning,
    Field(discriminator="type"),
]
EVENT: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)

LIFECYCLE: Final = (
    "job_started", "calibration_winner", "job_resumed", "out_of_memory", "job_interrupted",
    "training_done", "job_failed", "job_cancelled",
)  # fmt: skip
"""Types of the events that also go to the stream that is never trimmed."""
LAST: Final = ("training_done", "job_failed", "job_cancelled")
"""Types of the events after which an attempt says nothing more."""


def flatten(event: Event) -> dict[str, str]:
    """Return the event as the flat key=value fields of a Redis stream record; null fields are left out."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in event.model_dump(mode="json").items()
        if value is not None
    }


def unflatten(fields: dict[str, str]) -> AnyEvent:
    """Return the event in a stream record; raises `pydantic.ValidationError` for what is none."""
    return EVENT.validate_python(fields)


class TrainResult(Wire):
    """What the job's function returns, and `preflight train --json` prints."""

    model_config = ConfigDict(json_schema_extra=_says_what_it_is)

    type: Literal["preflight.result.v1"] = "preflight.result.v1"
    job_id: JobId
    attempt: Count
    status: Literal["finished", "cancelled"]
    test_accuracy: Share | None = None
    test_loss: Loss | None = None
    epochs: Count | None = None
    best_epoch: Count | None = None
    stopped_early: bool | None = None
    train_seconds: Seconds | None = None
    samples_per_s: Rate | None = None
    predicted_epoch_s: Seconds | None = None
    measured_epoch_s: Seconds | None = None
    profile: StepProfile | None = None
    """For a job with `profile`."""
    plan: Plan | None = None
    artifact: Text | None = None
    artifact_url: Text | None = None
    """Where the model also is; null where it was not uploaded."""
    model_sha256: Sha256 | None = None
    report: Text | None = None
    """The page about the run; null: none was made."""
    onnx: Text | None = None
    """The model as ONNX; null: it was not asked for, or refused."""


def read_result(text: str | bytes) -> TrainResult:
    """Return the result in a JSON text; fields of a newer version are passed over. Raises `ValidationError`."""
    return TrainResult.model_validate_json(text, extra="ignore")


Status = Literal["queued", "running", "finished", "failed", "cancelled", "unknown"]


class JobState(Wire):
    """The latest value of everything about a job."""

    job_id: JobId
    status: Status
    attempt: Count | None = None
    started_at: Seconds | None = None
    """When the newest attempt began, seconds since the epoch."""
    updated_at: Seconds | None = None
    """When it was last heard of; of a job that waits, when it was enqueued."""
    worker: Label | None = None
    dataset: Label | None = None
    model: Label | None = None
    epoch: Count | None = None
    epochs: Count | None = None
    loss: Loss | None = None
    val_acc: Share | None = None
    samples_per_s: Rate | None = None
    eta_s: Seconds | None = None
    memory_mb: Count | None = None
    """What the container allows, MiB."""
    used_memory_mb: Count | None = None
    predicted_epoch_s: Seconds | None = None
    measured_epoch_s: Seconds | None = None
    test_accuracy: Share | None = None
    artifact: Text | None = None
    artifact_url: Text | None = None
    model_sha256: Sha256 | None = None
    report: Text | None = None
    onnx: Text | None = None
    reason: Label | None = None
    field: Text | None = None
    message: Text | None = None
