"""Events about the plan: calibration, configuration and changes while training."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, create_model, model_validator

from preflight.contract import plan, spec
from preflight.contract.removed import forget_removed, without_removed_knob
from preflight.contract.verdicts import Confidence, ProbeOutcome, ProbePhase, TrialKnob, Verdict
from preflight.wire.base import Count, Event, Label, Members, Rate, Ratio, Seconds, Text


def _shown(name: str) -> tuple[object, object]:
    """Return type and default of a plan's field in an event; a field that the line of every plan has is required."""
    return plan.TYPES[name], ... if plan.words(name).always else plan.DEFAULTS[name]


if TYPE_CHECKING:
    _AnyPlan = Event
else:
    _AnyPlan = create_model("_AnyPlan", __base__=Event, **{name: _shown(name) for name in plan.TYPES})


class PlanFields(_AnyPlan):
    """Fields of a plan in an event."""

    @model_validator(mode="before")
    @classmethod
    def _forget_removed(cls, fields: object) -> object:
        return forget_removed("plan", fields)

    def plan(self) -> plan.Plan:
        """Return the plan; raises pydantic's `ValidationError` for fields that exclude each other."""
        return plan.PLAN.validate_python(self.model_dump(include={*plan.TYPES}), strict=False)


class MemoryProbed(Event):
    """Calibration looked at the memory of one micro-batch."""

    type: Literal["memory_probe"] = "memory_probe"
    phase: ProbePhase
    """`line`: one of the sizes that predict the others; `1A`: the whole batch; `1B`: doubling; `1C`: bisection."""
    micro_batch: plan.MicroBatch
    predicted_bytes: Count | None = None
    """Prediction by the line through the two smallest sizes; null before there is one."""
    peak_bytes: Count | None = None
    """Measured memory; null where it was not run, or did not survive."""
    limit_bytes: Count
    """Resident memory that a training process may have."""
    outcome: ProbeOutcome
    """`over`: ran, but in more than is safe; `refused`: predicted not to fit, and not run."""


class CalibrationTrial(PlanFields):
    """Calibration considered a plan; measurements are null where it was not measured."""

    type: Literal["calibration_trial"] = "calibration_trial"
    knob: Annotated[TrialKnob | None, BeforeValidator(without_removed_knob)] = None
    """Knob that was changed; `own`: the user's plan; `default`: the container's, measured first where that is another
    one; `earlier`, before 0.30.6: the plan that won on processors like this one."""
    predicted_epoch_s: Seconds | None = None
    step_s: Seconds | None = None
    samples_per_s: Rate | None = None
    steps: Count
    """Steps measured."""
    steps_asked: Count | None = None
    """Steps asked for, where fewer were measured: those took several times as long as expected; null: as many."""
    p95_s: Seconds | None = None
    """95th percentile of the seconds of a step; null where too few steps were measured for one."""
    max_s: Seconds | None = None
    """The slowest step, where there is no `p95_s`."""
    ratio: Ratio | None = None
    """Speed relative to the best plan so far, from paired measurements; null for the first."""
    low: Ratio | None = None
    high: Ratio | None = None
    """95 % confidence interval of `ratio`; null where there is none."""
    peak_bytes: Count | None = None
    """Peak resident memory of the measuring process."""
    expected_saving_s: Seconds | None = None
    """Seconds that measuring it was expected to save over the rest of the training."""
    expected_cost_s: Seconds | None = None
    """Seconds that measuring it was expected to take, process starts and its share of the confirmation included."""
    left_s: Seconds | None = None
    """Seconds that the calibration may still take."""
    disturbed: bool = False
    """Whether something else used the processors meanwhile."""
    reached: bool = True
    """False: skipped, because the search ended before its turn; else a skipped plan was not worth a measurement."""
    won: bool
    verdict: Verdict | None = None
    note: Text


class CalibrationWinner(PlanFields):
    """The plan that the job uses, and why."""

    type: Literal["calibration_winner"] = "calibration_winner"
    source: Literal["cache", "measured", "own", "kept"]
    why: Label
    reasons: Text = ""
    """Change and gain of each adopted trial, and the confirmation; empty where nothing was measured."""
    predicted_epoch_s: Seconds | None = None
    predicted_low_s: Seconds | None = None
    predicted_high_s: Seconds | None = None
    """95 % confidence interval of `predicted_epoch_s`."""
    confidence: Confidence | None = None
    """Confidence in the prediction; null where nothing was measured."""
    doubt: Text = ""
    """Why the confidence is low, a clause; empty where it is high."""
    ratio: Ratio | None = None
    """Speed of the winner relative to the user's own plan."""
    ratio_low: Ratio | None = None
    ratio_high: Ratio | None = None
    """95 % confidence interval of `ratio`. Where the confidence is low, only this is known."""
    proven: bool | None = None
    """Whether `ratio_low` is above the least gain that counts; else the user's own plan stays."""
    fresh_process: bool = True
    """Whether `ratio` was confirmed in a fresh process; false: the races that led to the winner are the proof."""
    at_least: bool = False
    """Whether `ratio` is a lower bound: the user's own plan was stopped before two whole steps."""
    max_feasible: Count | None = None
    """Largest micro-batch known to fit into memory; 0: none."""
    cache: Literal["hit", "miss", "off"] | None = None
    calibration_s: Seconds
    """Wall time of the calibration, starts of processes and imports included."""
    import_s: Seconds
    """The part of it that processes took to start and to import torch."""
    trials: Count
    """Plans that were run."""
    skipped: Count = 0
    """Plans that were not run: not worth a measurement, or not reached. `trials` does not count them."""


class BatchAdvice(Event):
    """Gain of larger effective batches; they change the result, so none is applied."""

    type: Literal["batch_advice"] = "batch_advice"
    batch_size: spec.BatchSize
    """Effective batch of the job."""
    samples_per_s: Rate | None = None
    epoch_s: Seconds | None = None
    peak_bytes: Count | None = None
    budget_bytes: Count
    """Memory that a training process may have."""
    largest_measured: spec.BatchSize
    """Largest effective batch that was measured; the job's own where none larger was."""
    advised: spec.BatchSize | None = None
    """Smallest batch within 2 % of the fastest; null: none is proven faster than the job's own."""
    advised_micro_batch: plan.MicroBatch | None = None
    advised_ratio: Rate | None = None
    """Samples per second of the advised batch relative to the job's own, from paired measurements."""
    advised_low: Rate | None = None
    advised_high: Rate | None = None
    """95 % confidence interval of `advised_ratio`."""
    advised_samples_per_s: Rate | None = None
    advised_epoch_s: Seconds | None = None
    advised_peak_bytes: Count | None = None
    message: Text
    """The advice as a sentence."""


class TrainingConfig(PlanFields):
    """Configuration of the training process."""

    type: Literal["training_config"] = "training_config"
    batch_size: spec.BatchSize
    optimizer: spec.Optimizer | None = None
    learning_rate: spec.LearningRate | None = None
    """Peak of the schedule."""
    schedule: spec.Schedule | None = None
    seed: spec.Seed | None = None


class LoaderConfig(Event):
    """Configuration of the data loader."""

    type: Literal["dataloader_config"] = "dataloader_config"
    num_workers: plan.LoaderWorkers
    persistent_workers: bool
    prefetch_factor: plan.PrefetchFactor | None = None


class ProcessorsShared(Event):
    """Another job of this host has begun or ended, so that this one has other processors from now on."""

    type: Literal["processors_shared"] = "processors_shared"
    processors: Count
    """Processors that this job has now."""
    of_processors: Count
    shared_with: Members = ()
    """Ids of the jobs that have the rest."""
    together: Ratio | None = None
    """Times as much as all do at the same time as one after the other; null where another job has come or gone."""
    message: Text


class PlanAdapted(Event):
    """The running training changed its plan, or confirmed a change."""

    type: Literal["plan_adapted"] = "plan_adapted"
    field: Literal["threads", "micro_batch"]
    before: Count
    after: Count
    reason: Text
    predicted_epoch_s: Seconds | None = None
    predicted_low_s: Seconds | None = None
    predicted_high_s: Seconds | None = None
    """A new prediction of an epoch with its 95 % interval, where the container's limits changed; else null."""
