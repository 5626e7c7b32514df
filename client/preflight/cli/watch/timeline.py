"""State of a job for the live view: stage, figures, curves and milestones from its events."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from preflight import Silence, wire
from preflight.cli.formatting.events import format_event
from preflight.cli.watch.braille import Curve
from preflight.contract.plan import TYPES

MAX_MILESTONES: Final = 100
MILESTONES: Final = (*wire.LIFECYCLE_EVENTS, *wire.EXTRA_EVENTS, "plan_adapted", "warning")
"""Types of the events that the view lists."""


@dataclass(slots=True)
class JobTimeline:
    """One job, from the events received so far."""

    job_id: str
    status: wire.Status = "queued"
    jobs_ahead: int | None = None
    """Jobs before it in the queue; None: not known."""
    redis_problem: str | None = None
    last: wire.AnyEvent | None = None
    """The last event, not counting those of extras."""
    started_at: float | None = None
    """Start of the first attempt, seconds since the epoch."""
    start: wire.JobStarted | None = None
    limits: wire.ResourceLimits | None = None
    data: wire.DatasetReady | None = None
    trials: int = 0
    """Plans that were run."""
    best: float | None = 1.0
    """Speedup of the fastest plan so far over the job's own plan; None: the machine was busy, so that it is unknown."""
    winner: wire.CalibrationWinner | None = None
    plan: wire.PlanFields | None = None
    """The plan in use."""
    group: wire.GroupFormed | wire.GroupChanged | None = None
    """The workers that train the job now; None: one does, alone."""
    measured: wire.GroupMeasured | None = None
    progress: wire.Progress | None = None
    epoch: wire.EpochDone | None = None
    checked: wire.PredictionChecked | None = None
    loss: Curve = field(default_factory=Curve)
    accuracy: Curve = field(default_factory=Curve)
    milestones: deque[tuple[wire.AnyEvent, str]] = field(default_factory=lambda: deque(maxlen=MAX_MILESTONES))
    """Listed events and their texts."""
    _peaks: dict[tuple[object, ...], int] = field(default_factory=dict)

    def apply(self, update: wire.AnyEvent | Silence) -> bool:
        """Apply an event or a pause between events; return whether anything changed."""
        before, self.redis_problem = self.redis_problem, update.redis_problem if isinstance(update, Silence) else None
        if isinstance(update, Silence):
            return self.redis_problem != before
        self._apply_event(update)
        self.last = self.last if wire.follows_end(update, self.last) else update
        line = format_event(update)
        if line and update.type in MILESTONES:
            self.milestones.append((update, line))
        return True

    def _apply_event(self, event: wire.AnyEvent) -> None:
        self.status = wire.STATUS_BY_EVENT.get(event.type, self.status)
        match event:
            case wire.JobStarted():
                self._start_attempt(event)
            case wire.ResourceLimits():
                self.limits = event
            case wire.DatasetReady():
                self.data = event
            case wire.CalibrationTrial():
                self._add_trial(event)
            case wire.CalibrationWinner():
                self.winner = self.plan = event
            case wire.TrainingConfig():
                self.plan = event
            case wire.PlanAdapted() if self.plan is not None:
                self.plan = self.plan.model_copy(update={event.field: event.after})
            case wire.Progress():
                self.status, self.progress = "running", event
                done = _epochs_done(event)
                self.loss.add(done, event.loss)
                self.accuracy.add(done, event.accuracy)
            case wire.EpochDone():
                self.epoch = event
            case wire.PredictionChecked():
                self.checked = event
            case wire.GroupFormed() | wire.GroupChanged():
                self.group = event if event.workers > 1 else None
            case wire.GroupMeasured():
                self.measured = event
            case wire.JobInterrupted() | wire.GroupShort():
                self.jobs_ahead = self.group = None

    def _start_attempt(self, event: wire.JobStarted) -> None:
        """Reset the figures of the earlier attempt: this one may run in another container."""
        self.start, self.jobs_ahead = event, None
        self.started_at = event.ts if self.started_at is None else self.started_at
        self.limits = self.data = self.winner = self.plan = self.checked = self.group = self.measured = None
        self.trials, self.best = 0, 1.0

    def _add_trial(self, trial: wire.CalibrationTrial) -> None:
        self.trials += trial.verdict != "skipped"
        if trial.peak_bytes is not None:
            self._peaks[_plan_key(trial)] = trial.peak_bytes
        if trial.won and trial.ratio is not None:
            self.best = None if self.best is None or trial.disturbed else self.best * trial.ratio

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory measured under the plan in use; None: not measured."""
        return None if self.plan is None else self._peaks.get(_plan_key(self.plan))

    @property
    def done(self) -> float:
        """Completed share of all steps."""
        if self.status == "finished":
            return 1.0
        now = self.progress
        if now is None or (self.start is not None and now.attempt < self.start.attempt):
            return 0.0  # this attempt has done no step yet
        return _epochs_done(now) / now.epochs

    @property
    def is_finished(self) -> bool:
        """Whether the last event ends the job."""
        return self.last is not None and self.last.type in wire.TERMINAL_EVENTS


def _epochs_done(now: wire.Progress) -> float:
    """Return the epochs done so far; each is divided by its number of steps, as the last one may have fewer."""
    return now.epoch - 1 + now.step / max(1, now.steps)


def _plan_key(plan: wire.PlanFields) -> tuple[object, ...]:
    return tuple(getattr(plan, name) for name in TYPES)
