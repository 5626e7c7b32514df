"""What a job's events have told so far: its stage, its figures, its curves, its turning points."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from worker.cli.formatting.choices import describe
from worker.cli.watch.braille import Curve
from worker.client import Silence
from worker.wire import (
    LAST,
    AnyEvent,
    CalibrationTrial,
    CalibrationWinner,
    DatasetReady,
    EpochDone,
    Event,
    JobCancelled,
    JobFailed,
    JobInterrupted,
    JobResumed,
    JobStarted,
    JobWarning,
    MemoryRanOut,
    PlanAdapted,
    PlanFields,
    PredictionChecked,
    Progress,
    ResourceLimits,
    Status,
    TrainingConfig,
    TrainingDone,
)

MOST_TURNS: Final = 100
"""Turning points that are kept, the newest."""
PLAN: Final = tuple(name for name in PlanFields.model_fields if name not in Event.model_fields)
"""Fields of a plan that its events share."""

TURNS: Final = (
    JobStarted, CalibrationWinner, JobResumed, PlanAdapted, MemoryRanOut, JobInterrupted, JobWarning, TrainingDone,
    JobFailed, JobCancelled,
)  # fmt: skip
"""Events that are worth to be remembered as they were said."""
ENDS: Final[Mapping[str, Status]] = {
    "training_done": "finished", "job_failed": "failed", "job_cancelled": "cancelled",
}  # fmt: skip


@dataclass(slots=True)
class Story:
    """One job, as far as it was heard of."""

    job_id: str
    status: Status = "queued"
    before: int | None = None
    """Jobs before it in the queue, where that is known."""
    trouble: str | None = None
    """What is the matter with Redis."""
    last: AnyEvent | None = None
    began: float | None = None
    """When it was first taken, seconds since the epoch."""
    started: JobStarted | None = None
    limits: ResourceLimits | None = None
    data: DatasetReady | None = None
    trials: int = 0
    best: float = 1.0
    """Speed of the fastest plan so far against the user's own."""
    winner: CalibrationWinner | None = None
    plan: PlanFields | None = None
    """Under which it runs now."""
    progress: Progress | None = None
    epoch: EpochDone | None = None
    checked: PredictionChecked | None = None
    loss: Curve = field(default_factory=Curve)
    accuracy: Curve = field(default_factory=Curve)
    turns: deque[tuple[AnyEvent, str]] = field(default_factory=lambda: deque(maxlen=MOST_TURNS))
    """Turning points and how they are said."""
    _peaks: dict[tuple[object, ...], int] = field(default_factory=dict)

    def hear(self, said: AnyEvent | Silence) -> bool:
        """Take the next thing that is said; return whether anything is new."""
        before, self.trouble = self.trouble, said.trouble if isinstance(said, Silence) else None
        if isinstance(said, Silence):
            return self.trouble != before
        self._take(said)
        self.last = said
        line = describe(said)
        if line and isinstance(said, TURNS):
            self.turns.append((said, line))
        return True

    def _take(self, event: AnyEvent) -> None:
        match event:
            case JobStarted():
                self._begin(event)
            case ResourceLimits():
                self.limits = event
            case DatasetReady():
                self.data = event
            case CalibrationTrial():
                self._tried(event)
            case CalibrationWinner():
                self.winner = self.plan = event
            case TrainingConfig():
                self.plan = event
            case PlanAdapted() if self.plan is not None:
                self.plan = self.plan.model_copy(update={event.field: event.after})
            case Progress():
                self.status, self.progress = "running", event
                done = (event.epoch - 1) * event.steps + event.step
                self.loss.add(done, event.loss)
                self.accuracy.add(done, event.accuracy)
            case EpochDone():
                self.epoch = event
            case PredictionChecked():
                self.checked = event
            case JobInterrupted():
                self.status, self.before = "queued", None
        if event.type in LAST:
            self.status = ENDS[event.type]

    def _begin(self, event: JobStarted) -> None:
        """Forget what an earlier attempt found out: this one may be in another container."""
        self.status, self.started, self.before = "running", event, None
        self.began = event.ts if self.began is None else self.began
        self.limits = self.data = self.winner = self.plan = self.checked = None
        self.trials, self.best = 0, 1.0

    def _tried(self, trial: CalibrationTrial) -> None:
        self.trials += 1
        if trial.peak_bytes is not None:
            self._peaks[_settings(trial)] = trial.peak_bytes
        if trial.won and trial.ratio is not None:
            self.best *= trial.ratio

    @property
    def peak_bytes(self) -> int | None:
        """Most memory that was measured under the plan in use; None where it was not."""
        return None if self.plan is None else self._peaks.get(_settings(self.plan))

    @property
    def done(self) -> float:
        """Share of the steps of all epochs that are done."""
        if self.status == "finished":
            return 1.0
        now = self.progress
        return 0.0 if now is None else ((now.epoch - 1) * now.steps + now.step) / max(1, now.epochs * now.steps)

    @property
    def over(self) -> bool:
        """Whether it has ended, as far as it says itself."""
        return self.last is not None and self.last.type in LAST


def _settings(plan: PlanFields) -> tuple[object, ...]:
    return tuple(getattr(plan, name) for name in PLAN)
