"""Result of a calibration: the plan, its prediction, and everything that led to it.

The plan cache keeps it as it is, so that a choice can still be explained and drawn when nothing was measured for it.
"""

from dataclasses import InitVar
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from preflight.contract.plan import Plan
from preflight.contract.spec import STRICT
from preflight.contract.verdicts import BatchOutcome, Confidence, ProbeOutcome, ProbePhase, TrialKnob, Verdict
from training.prediction import Prediction

Seconds = Annotated[float, Field(ge=0)]
Bytes = Annotated[int, Field(ge=0)]
Ratio = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Trial:
    """One plan that was considered."""

    knob: TrialKnob
    plan: Plan
    verdict: Verdict
    note: str
    """Reason of the verdict in a few words; empty where the figures say it."""
    at: Seconds
    """Seconds from the beginning of the search to that of the trial."""
    seconds: Seconds
    """Seconds that the trial took."""
    steps: Annotated[int, Field(ge=0)] = 0
    """Steps measured, without warm-up."""
    steps_asked: Annotated[int, Field(ge=0)] | None = None
    """Steps asked for, where fewer were measured: those took several times as long as expected."""
    step_s: Seconds | None = None
    """Median seconds of a step of the effective batch, fetching included; None: not measured."""
    predicted_epoch_s: Seconds | None = None
    slowest_s: tuple[Literal["p95", "max"], Seconds] | None = None
    """Seconds of the slowest steps: the 95th percentile where there are enough of them to have one."""
    ratio: Ratio | None = None
    """Speed against the best plan before it, paired; above 1 is faster."""
    low: Ratio | None = None
    high: Ratio | None = None
    """95 % bootstrap interval of the ratio."""
    fetch_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the step spent waiting for its batch."""
    peak_bytes: Bytes | None = None
    """Most memory that the measuring process had resident."""
    disturbed: bool = False
    """Whether something else used the processors meanwhile."""
    expected_saving_s: Seconds | None = None
    """Seconds that measuring it was expected to save over the rest of the training."""
    expected_cost_s: Seconds | None = None
    """Seconds that measuring it was expected to take, with process starts and its share of the confirmation."""
    kept: bool = False
    """Whether this was measured by an earlier calibration."""
    reached: bool = True
    """False: skipped, because the search ended before its turn; else a skipped plan was not worth a measurement."""

    @property
    def ran(self) -> bool:
        """Whether the plan was run; one that was not counts nowhere as a trial."""
        return self.verdict != "skipped"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class MemoryProbe:
    """One micro-batch whose memory was measured or predicted."""

    phase: ProbePhase
    """`line`: one of the two sizes that predict; 1A: the effective batch; 1B: doubling; 1C: bisection."""
    micro_batch: Annotated[int, Field(ge=1)]
    predicted_bytes: Bytes | None
    """Bytes predicted by the line through the smallest and the largest size that ran; None before there is one."""
    peak_bytes: Bytes | None
    """Measured bytes; None where it was not run or did not survive."""
    outcome: ProbeOutcome
    """`over`: ran, but above the budget; `refused`: predicted not to fit, and not run."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class MemoryFit:
    """Memory against micro-batch: bytes = base + slope * micro_batch, and the largest micro-batch that fits."""

    probes: tuple[MemoryProbe, ...]
    base_bytes: float
    sample_bytes: float
    budget_bytes: Bytes
    """Bytes that a training process may have resident."""
    max_feasible: Annotated[int, Field(ge=0)]
    """Largest micro-batch known to fit; 0: none does."""
    capped: bool
    """Whether `max_feasible` is the effective batch itself: more would not be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Confirmation:
    """The winner against the user's own plan: in turns in a fresh process, or by the races that led to it."""

    ratio: Ratio
    low: Ratio
    high: Ratio
    pairs: Annotated[int, Field(ge=1)]
    proven: bool
    """Whether the lower bound is above the least gain that counts."""
    fresh_process: bool = True
    """False: the product of races, as the confirmation would have cost more than it can save."""
    at_least: bool = False
    """Whether the user's own plan was stopped before two whole steps, so that `ratio` is a lower bound."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class BatchTrial:
    """An effective batch that was considered under the chosen plan."""

    batch_size: Annotated[int, Field(ge=1)]
    micro_batch: Annotated[int, Field(ge=1)]
    outcome: BatchOutcome
    note: str = ""
    """Reason why it was not measured."""
    predicted_bytes: Bytes | None = None
    peak_bytes: Bytes | None = None
    """Most memory that the measuring process had resident, with nothing else in it."""
    ratio: Ratio | None = None
    """Samples per second against those of the job's batch, in turns; above 1 is faster."""
    low: Ratio | None = None
    high: Ratio | None = None
    """95 % bootstrap interval of the ratio."""
    samples_per_s: float | None = None
    epoch_s: Seconds | None = None
    """Predicted seconds of an epoch with its validation."""


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class BatchAdvice:
    """Measured gain of larger effective batches; never applied, as they change what is learned."""

    trials: tuple[BatchTrial, ...]
    """The job's own batch first, then the larger ones; the own alone where there are no samples for a larger one."""
    advised: Annotated[int, Field(ge=1)] | None
    """Smallest batch within 2 % of the fastest; None: none is proven faster than the job's own."""
    budget_bytes: Bytes
    """Bytes that a training process may have resident."""
    disturbed: bool
    """Whether something else used the processors meanwhile."""
    asked: bool
    """Whether it was asked for, and so was given more time."""
    seconds: Seconds
    """Seconds it took, the start of its process included; a part of `calibration_seconds` and of `import_seconds`."""

    @property
    def complete(self) -> bool:
        """Whether no batch was left out for time."""
        return all(trial.outcome != "skipped" for trial in self.trials)


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class CalibrationResult:
    """The outcome of one calibration."""

    baseline: Plan
    plan: Plan
    prediction: Prediction
    trials: tuple[Trial, ...]
    """Trials in the order in which they were made, the user's own plan first."""
    memory: MemoryFit | None
    confirmation: Confirmation | None
    """Confirmation of the winner; None where the user's own plan was not beaten, or time ran out."""
    confidence: Confidence
    doubt: str = ""
    """Reason for a low confidence, as a clause; empty where it is high."""
    why: str
    """One sentence that says why this plan was chosen."""
    samples: Annotated[int, Field(ge=1)]
    """Steps that were to be measured of each plan."""
    searched_epochs: Annotated[float, Field(gt=0)] | None = None
    """Length of the training for which plans were left out as not worth their time; None: none was left out."""
    cut_short: bool = False
    """Whether something that was worth a measurement was not measured, or not confirmed."""
    decided: bool = True
    """Whether the comparison came to its end; else a process was lost in it, and the next job measures again."""
    advice: BatchAdvice | None = None
    """Advice on the effective batch; None where larger batches were not considered."""
    batch_size: Annotated[int, Field(ge=1)]
    """Effective batch size."""
    steps_per_epoch: Annotated[int, Field(ge=1)]
    budget_s: Seconds
    idle: InitVar[bool] = False
    """Read from results of versions up to 0.25.1, and not stored: whether it was measured while no job waited."""
    calibration_seconds: Seconds
    """Wall time, the start of processes and the import of torch included; `budget_s` does not count those."""
    import_seconds: Seconds
    """The part of it that processes took to start and to import torch."""

    @property
    def measured(self) -> int:
        """Plans that were timed, the user's own among them."""
        return len({trial.plan for trial in self.trials if trial.step_s is not None})
