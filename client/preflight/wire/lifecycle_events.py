"""Events of a job's lifecycle: start, checkpoint, resume, out of memory, warning, end, and extras after it."""

from typing import Literal

from preflight.contract import plan, spec
from preflight.contract.recipes import RecipeName
from preflight.wire.base import (
    ClassNames,
    ClassShares,
    Count,
    Event,
    Label,
    Loss,
    Rate,
    Seconds,
    Sha256,
    Share,
    Text,
)
from preflight.wire.configuration import Request


class JobStarted(Event):
    """A worker has started an attempt of the job."""

    type: Literal["job_started"] = "job_started"
    worker: Label
    dataset: spec.DatasetName
    recipe: RecipeName | None = None
    model: spec.Name
    epochs: spec.Epochs
    batch_size: spec.BatchSize
    waited_s: Seconds | None = None
    """Time in the queue."""
    request: Request | None = None
    """The job as it was asked for, without its id; null where it has more than 4096 characters."""
    preflight_version: Label | None = None
    torch_version: Label | None = None
    """Version of torch; null: not installed."""
    python_version: Label | None = None


class ResourceLimits(Event):
    """CPU and memory limits of the container, and their source."""

    type: Literal["resource_limits"] = "resource_limits"
    cpu_cores: Count
    quota: Rate | None = None
    """CPU quota in cores; null: none."""
    memory_mib: Count
    """Memory budget."""
    threads: Count | None = None
    """Threads that a training begins with here: one for each whole core. Calibration tries others."""
    loader_workers: Count | None = None
    """Loader workers that it begins with: none, as the training process gathers its batches faster than one worker."""
    largest_batch: Count | None = None
    """Samples of `cnn` in float32 that the memory holds at once; the limit of another network is its `max_feasible`."""
    source: Text


class DatasetReady(Event):
    """The prepared data set is on disk."""

    type: Literal["dataset_ready"] = "dataset_ready"
    dataset: spec.DatasetName
    train_samples: Count
    test_samples: Count
    took_s: Seconds
    classes: Count | None = None
    dataset_sha256: Sha256 | None = None
    """SHA-256 of an imported data set's content."""


class CheckpointSaved(Event):
    """A checkpoint is on disk; training up to this step survives a kill."""

    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    epochs_done: Count
    steps_done: Count
    """Steps done of the epoch after `epochs_done`."""
    took_s: Seconds
    """Time that the training was blocked."""
    checkpoint_bytes: Count


class JobResumed(Event):
    """The training resumed from a checkpoint."""

    type: Literal["job_resumed"] = "job_resumed"
    epochs_done: Count
    steps_done: Count
    """Steps done of the epoch after `epochs_done`."""


class MemoryRanOut(Event):
    """The training was killed for memory and is retried with smaller batches."""

    type: Literal["out_of_memory"] = "out_of_memory"
    message: Text
    micro_batch: plan.MicroBatch
    """New micro-batch."""
    eval_batch: plan.EvalBatch
    """New evaluation batch."""


class JobInterrupted(Event):
    """The worker is shutting down; the job is at the front of its queue, with its checkpoint on disk."""

    type: Literal["job_interrupted"] = "job_interrupted"
    message: Text


class JobWarning(Event):
    """A problem that does not end the job."""

    type: Literal["warning"] = "warning"
    message: Text
    rank: Count | None = None
    """Rank of the group's member that warns; null: the worker that has the job."""


class TrainingDone(Event):
    """The job is finished, its model is published; the fields are those of its result."""

    type: Literal["training_done"] = "training_done"
    test_accuracy: Share
    test_loss: Loss
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
    epochs: spec.Epochs
    train_steps: Count | None = None
    """Optimizer steps taken."""
    parameters: Count | None = None
    """Parameters of the model."""
    best_epoch: spec.Epochs
    stopped_early: bool
    train_s: Seconds
    samples_per_s: Rate
    predicted_epoch_s: Seconds | None = None
    measured_epoch_s: Seconds
    artifact: Text
    artifact_url: Text | None = None
    """URL that the model was uploaded to."""
    model_sha256: Sha256
    dataset: spec.DatasetName | None = None
    """Data set that it was trained on; of imported data with its version."""
    dataset_sha256: Sha256 | None = None
    """SHA-256 of the data set's content: that of an imported version, else of the prepared samples."""
    report: Text | None = None
    """The run's HTML report."""
    onnx: Text | None = None
    """The model as ONNX."""
    extras: Text | None = None
    """Extras that follow, each with its event: some of `onnx report upload mlflow`, separated by spaces."""
    workers: Count | None = None
    """Workers that finished the training together."""


class OnnxReady(Event):
    """The ONNX export of a finished job is next to its model."""

    type: Literal["onnx_ready"] = "onnx_ready"
    onnx: Text


class ReportReady(Event):
    """The HTML report of a finished job is next to its model."""

    type: Literal["report_ready"] = "report_ready"
    report: Text


class ArtifactUploaded(Event):
    """The files of a finished job were sent to a destination, whose field is set."""

    type: Literal["artifact_uploaded"] = "artifact_uploaded"
    artifact_url: Text | None = None
    """URL of the model."""
    mlflow_uri: Text | None = None
    """MLflow's server, without a password."""


class JobFailed(Event):
    """The job failed; no model was saved."""

    type: Literal["job_failed"] = "job_failed"
    reason: Label
    field: Text | None = None
    message: Text


class JobCancelled(Event):
    """The job was cancelled on request."""

    type: Literal["job_cancelled"] = "job_cancelled"
    message: Text
