"""Events of the training loop: groups of workers, progress, epochs, predictions and profile."""

from typing import Final, Literal

from preflight.contract import spec
from preflight.wire.base import (
    Count,
    Counts,
    Deviation,
    Event,
    Label,
    Loss,
    Members,
    Rate,
    Rates,
    Ratio,
    Seconds,
    Sha256,
    Share,
    Text,
    Timestamp,
    Wire,
)

TOTALS: Final = ("total_s", "average_batch_s")
"""Fields of a profile that are no phase."""


class ModelBuilt(Event):
    """The training process has built its model."""

    type: Literal["model_built"] = "model_built"
    model: spec.Name
    parameters: Count


class ModelInitialized(Event):
    """The training starts from the weights of a trained model."""

    type: Literal["model_initialized"] = "model_initialized"
    parent: Label
    """The job that trained it."""
    model_sha256: Sha256
    new_head: bool
    """Whether the last layer is drawn again, for another number of classes."""
    message: Text


class Progress(Event):
    """Training metrics since the previous progress event."""

    type: Literal["progress"] = "progress"
    epoch: spec.Epochs
    epochs: spec.Epochs
    step: Count
    steps: Count
    """Steps of this epoch; the last one has fewer where `max_steps` ends it."""
    train_steps: Count | None = None
    """Optimizer steps done in all epochs."""
    loss: Loss
    accuracy: Share
    """Training accuracy, measured on the batches as they were trained on."""
    samples_per_s: Rate
    eta_s: Seconds
    """Seconds of training left at this speed."""
    used_memory_mib: Count | None = None
    """Memory used in the container without reclaimable caches; null: not readable."""
    first_step_at: Timestamp | None = None
    """End of the first step of the training process, seconds since the epoch."""


class EpochDone(Event):
    """Metrics of one epoch."""

    type: Literal["epoch_done"] = "epoch_done"
    epoch: spec.Epochs
    loss: Loss
    val_acc: Share | None = None
    """Validation accuracy; null without a validation split."""
    val_loss: Loss | None = None
    val_macro_f1: Share | None = None
    """Mean of the F1 scores of the classes on the validation samples."""
    samples_per_s: Rate
    took_s: Seconds
    train_s: Seconds


class PredictionChecked(Event):
    """Predicted and measured time, after the first steps of a process and after each epoch."""

    type: Literal["prediction_checked"] = "prediction_checked"
    epoch: spec.Epochs
    steps: Count
    """Steps measured."""
    whole: bool
    """Whether they are a whole epoch, validation included."""
    predicted_s: Seconds
    """Predicted time of these steps."""
    low_s: Seconds
    high_s: Seconds
    """95 % confidence interval of `predicted_s`."""
    measured_s: Seconds
    """Measured time of these steps, loading and warm-up included."""
    predicted_batch_s: Seconds
    """Predicted time of a step."""
    measured_batch_s: Seconds
    """Measured time of a step: total_epoch_time / total_batches."""
    deviation: Deviation
    """measured / predicted - 1."""
    cause: Literal["noisy", "calibration", "adapted"] | None = None
    """Cause of a deviation above 10 %: interference, wrong calibration, or a plan changed while training."""
    seen: Text = ""
    """Evidence of the cause."""

    @property
    def is_warned_of(self) -> bool:
        """Whether a `warning` says the same: the first time that a training is slower than predicted has one."""
        return self.cause in ("noisy", "calibration") and self.deviation > 0


class StepProfile(Wire):
    """Time of each phase over all epochs, seconds; the phases add up to `total_s`, but for rounding."""

    steps: Count
    average_batch_s: Seconds
    """total_epoch_time / total_batches: warm-up, loading and validation included."""
    total_s: Seconds
    data_s: Seconds
    """Fetching, augmentation, normalization."""
    transfer_s: Seconds
    """Transfer to the device; 0 on a CPU."""
    forward_s: Seconds
    loss_s: Seconds
    backward_s: Seconds
    optimizer_s: Seconds
    validation_s: Seconds
    checkpoint_s: Seconds = 0.0
    """Saving checkpoints and the best weights."""
    other_s: Seconds
    """Reporting and everything else."""

    def phases(self) -> list[tuple[str, float, float]]:
        """Return each phase with its seconds a step and its share of the total."""
        names = [name for name in StepProfile.model_fields if name.endswith("_s") and name not in TOTALS]
        steps, total = max(1, self.steps), max(self.total_s, 1e-9)
        spent = {name.removesuffix("_s"): float(getattr(self, name)) for name in names}
        return [(phase, taken / steps, taken / total) for phase, taken in spent.items()]


class TrainingProfile(Event, StepProfile):
    """Time of each phase, for a job with `profile`."""

    type: Literal["training_profile"] = "training_profile"


class GroupFormed(Event):
    """Workers have sat down to train the job together, and their processes are connected."""

    type: Literal["group_formed"] = "group_formed"
    workers: Count
    members: Members
    """Names by rank, the leader first."""
    cores: Rates = ()
    """Cores of the container of each member, by rank; a quota may be a fraction."""
    memory_mib: Counts = ()
    """Memory budget of each member, by rank."""
    took_s: Seconds
    """Time since the seats were offered."""
    message: Text


class GroupMeasured(Event):
    """Real steps of the group were timed against the same steps of its leader alone."""

    type: Literal["group_measured"] = "group_measured"
    workers: Count
    """Workers that were measured together."""
    members: Members = ()
    speeds: Rates = ()
    """Samples a second of each member alone, by rank."""
    alone_samples_per_s: Rate
    """Speed of the leader alone."""
    group_samples_per_s: Rate
    speedup: Ratio
    kept: bool
    """Whether the group continues; else a `group_changed` follows."""
    message: Text


class GroupChanged(Event):
    """The group has other members now, or has ended while its leader continues alone."""

    type: Literal["group_changed"] = "group_changed"
    workers: Count
    """Workers from now on; 1: the leader alone."""
    members: Members
    """Names by rank, the leader first."""
    left: Members = ()
    joined: Members = ()
    message: Text


GroupEvent = GroupFormed | GroupMeasured | GroupChanged


class GroupShort(Event):
    """Too few workers sat down; the job is at the end of its queue and keeps its retries."""

    type: Literal["group_short"] = "group_short"
    workers: Count
    """Workers that there were, the leader among them."""
    wanted: Count
    message: Text
