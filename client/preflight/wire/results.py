"""The result and the state of a job."""

from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict

from preflight.contract.confidence import Confidence
from preflight.contract.plan import Plan
from preflight.contract.removed import forget_removed
from preflight.wire.base import (
    ClassNames,
    ClassShares,
    Count,
    JobId,
    Label,
    Loss,
    Members,
    Rate,
    Seconds,
    Sha256,
    Share,
    Status,
    Text,
    Timestamp,
    Wire,
    require_tags,
)
from preflight.wire.configuration import Request
from preflight.wire.training_events import StepProfile


class Lineage(Wire):
    """The model whose weights a training started from."""

    init_from: Text
    """Name of the model in the job's request."""
    job_id: Label
    """The job that trained it."""
    model_sha256: Sha256
    dataset: Label | None = None
    """Data set that it was trained on; of imported data with its version."""
    dataset_sha256: Sha256 | None = None
    new_head: bool
    """Whether the last layer was drawn again, for another number of classes."""


class TrainResult(Wire):
    """The return value of the job's function; `preflight train --json` prints it."""

    model_config = ConfigDict(json_schema_extra=require_tags)

    type: Literal["preflight.result.v1"] = "preflight.result.v1"
    job_id: JobId
    attempt: Count
    status: Literal["finished", "cancelled"]
    test_accuracy: Share | None = None
    test_loss: Loss | None = None
    macro_f1: Share | None = None
    """Mean of the F1 scores of the classes."""
    class_precision: ClassShares | None = None
    """Share of each class's predictions that are correct; null without predictions."""
    class_recall: ClassShares | None = None
    """Share of each class's test samples that are correct; null without samples."""
    class_f1: ClassShares | None = None
    """Harmonic mean of each class's precision and recall; null without samples and predictions."""
    class_names: ClassNames | None = None
    """Names of the classes of imported data; null: the classes are numbers."""
    confidence: Confidence | None = None
    """Confidence of the model's answers; null: too few samples to measure it."""
    epochs: Count | None = None
    train_steps: Count | None = None
    """Optimizer steps taken."""
    parameters: Count | None = None
    """Parameters of the model; null in results of versions before 0.28."""
    best_epoch: Count | None = None
    stopped_early: bool | None = None
    train_s: Seconds | None = None
    samples_per_s: Rate | None = None
    predicted_epoch_s: Seconds | None = None
    measured_epoch_s: Seconds | None = None
    profile: StepProfile | None = None
    """Time of each phase, for a job with `profile`."""
    plan: Annotated[Plan | None, BeforeValidator(partial(forget_removed, "plan"))] = None
    artifact: Text | None = None
    artifact_url: Text | None = None
    """URL that the model was uploaded to."""
    model_sha256: Sha256 | None = None
    parent: Lineage | None = None
    """Model that the training started from, for a job with `init_from`."""
    dataset: Label | None = None
    """Data set that it was trained on; of imported data with its version: `photos@2`."""
    dataset_sha256: Sha256 | None = None
    """SHA-256 of the data set's content: that of an imported version, else of the prepared samples."""
    report: Text | None = None
    """The run's HTML report."""
    onnx: Text | None = None
    """The model as ONNX; null: not requested, or the export failed."""
    workers: Count | None = None
    """Workers that finished the training together."""


def read_result(text: str | bytes) -> TrainResult:
    """Return the result in a JSON text, ignoring fields of newer versions; raises `ValidationError`."""
    return TrainResult.model_validate_json(text, extra="ignore")


class JobState(Wire):
    """The latest value of every field of a job."""

    job_id: JobId
    rq_id: JobId | None = None
    """RQ's id of the job, where it is another."""
    status: Status
    rq_status: Label | None = None
    """RQ's status of the job, such as `scheduled` or `deferred` for a queued job, `stopped` for a cancelled one."""
    attempt: Count | None = None
    started_at: Timestamp | None = None
    """Start of the newest attempt, seconds since the epoch."""
    updated_at: Timestamp | None = None
    """Time of the last event, not counting those of extras; of a queued job, when it was enqueued, else made."""
    worker: Label | None = None
    dataset: Label | None = None
    dataset_sha256: Sha256 | None = None
    model: Label | None = None
    epoch: Count | None = None
    epochs: Count | None = None
    step: Count | None = None
    """Step of the epoch `epoch`, of `steps`."""
    steps: Count | None = None
    loss: Loss | None = None
    val_acc: Share | None = None
    val_macro_f1: Share | None = None
    samples_per_s: Rate | None = None
    eta_s: Seconds | None = None
    memory_mib: Count | None = None
    """Memory budget of the container."""
    used_memory_mib: Count | None = None
    predicted_epoch_s: Seconds | None = None
    measured_epoch_s: Seconds | None = None
    test_accuracy: Share | None = None
    macro_f1: Share | None = None
    """Macro F1 on the test set."""
    artifact: Text | None = None
    artifact_url: Text | None = None
    model_sha256: Sha256 | None = None
    report: Text | None = None
    onnx: Text | None = None
    workers: Count | None = None
    """Workers that train the job now, or that finished its training."""
    members: Members | None = None
    """Names of these workers by rank, the leader first."""
    processors: Count | None = None
    """Processors that the job has of its worker's host, where others have shared them with it; of `of_processors`."""
    of_processors: Count | None = None
    shared_with: Members | None = None
    """Ids of the jobs that have the rest now."""
    reason: Label | None = None
    field: Text | None = None
    message: Text | None = None
    request: Request | None = None
    """The job as it was asked for, without its id."""
