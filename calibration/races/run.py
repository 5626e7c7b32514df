"""State of one search: measurements of plans, trials, budget."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from calibration.measure.backend import Backend
from calibration.measure.protocol import Measured
from calibration.memory.model import MemoryModel
from calibration.memory.prober import CrashHistory, MemoryProber
from calibration.result import MemoryProbe, Trial
from calibration.space import Space
from calibration.task import Task
from preflight.contract.plan import Plan
from preflight.statistics import Comparison


class Records(CrashHistory, Protocol):
    """Trials of earlier calibrations of the same workload in the same container."""

    def lookup(self, best: Plan, plan: Plan) -> Trial | None:
        """Return the recorded trial of `plan` against `best`."""
        ...

    def record(self, trial: Trial, best: Plan | None) -> None:
        """Record a finished trial."""
        ...


@dataclass(slots=True)
class PlanStats:
    """Measured speed of a plan."""

    step_s: float
    blocks: list[Sequence[float]]
    """Seconds of its steps, in blocks that were measured together."""
    cut_short: int = 0
    """Steps that were asked for and not measured, as those before took several times as long as expected."""
    warm_s: float = 0.0
    """Seconds that its first steps took beyond the others."""
    fetch_share: float = 0.0
    peak_bytes: int = 0
    sample_s: float | None = None
    """Seconds of validating a sample."""
    gauges: list[float] = field(default_factory=list)
    """Seconds of the reference workload, right before and after its steps."""
    disturbed: str = ""
    """Description of other load on the processors while it was last measured."""
    period_s: float | None = None
    """Period of the CPU quota that set its pace when it was last measured; None: no quota did."""

    def forget_last(self) -> None:
        """Leave out the last block, unless there is no other."""
        if len(self.blocks) > 1:
            self.blocks.pop()
            self._settle()

    def _settle(self) -> None:
        self.step_s = statistics.median([step for block in self.blocks for step in block])

    def add(self, measured: Measured) -> None:
        """Add a measured block of steps."""
        self.blocks.append(measured.seconds)
        self._settle()
        self.fetch_share = min(1.0, measured.fetch_s / max(1e-9, sum(measured.seconds)))
        self.peak_bytes = max(self.peak_bytes, measured.peak_bytes)
        self.disturbed, self.period_s = measured.disturbed, measured.period_s
        if measured.warm:
            self.warm_s = max(0.0, sum(measured.warm) - len(measured.warm) * self.step_s)


class NothingMeasured(Exception):
    """Nothing could be measured; the message says why."""

    def __init__(self, message: str, plan: Plan) -> None:
        super().__init__(message)
        self.plan = plan
        """The user's own plan, in smaller pieces where memory is known to demand it."""


@dataclass(slots=True)
class SearchRun:
    """State of one search."""

    task: Task
    backend: Backend
    records: Records
    tell: Callable[[Trial | MemoryProbe], None]
    own: Plan
    """The user's plan, in smaller pieces where memory demands it."""
    cut: int
    """Samples of a step on which plans are compared. All seconds of steps are those of whole batches."""
    space: Space
    """Options of the container, without threads for processors that others hold."""
    prober: MemoryProber
    budget: float
    """Seconds that the lengths of races are made for: a share of the training's."""
    trials: list[Trial] = field(default_factory=list)
    evidence: dict[Plan, PlanStats] = field(default_factory=dict)
    default: Plan | None = None
    """The container's default, where it is surely faster than the user's own plan."""
    expected: dict[Plan, tuple[float, float]] = field(default_factory=dict)
    """Seconds that trying a plan was expected to save, and to cost."""
    against_own: dict[Plan, Comparison] = field(default_factory=dict)
    """Plans that won undisturbed races: speed against the user's own, by the product of the races that led there."""
    raced: dict[Plan, Comparison] = field(default_factory=dict)
    """Plans that won races, disturbed ones too: speed against the reference, likewise."""
    start_s: float = 0.0
    """Seconds that it takes to start a process."""
    left_out: bool = False
    """Whether a plan was not worth a measurement in a training of this length."""
    paces: dict[tuple[Plan, int], list[float]] = field(default_factory=dict)
    """Mean seconds of a step in each block that was measured, by plan and samples of a step."""
    gained: dict[Plan, float] = field(default_factory=dict)
    """Plans that won: how much faster each was than the one before it."""
    failures: int = 0
    """Lost processes."""
    complete: bool = True
    decided: bool = True
    """False where a process was lost while plans were compared, so that the next job has to measure again."""
    disturbed: bool = False
    noise: str = ""
    """Description of what disturbed the last race; empty where nothing did."""
    batch_statistics: bool = False
    paid: float = 1.0
    """Speed that the smaller micro-batches which won have left, as a share of the fastest one's."""
    unconfirmed: str = ""
    """Reason why the winner could not be confirmed; empty where it could."""

    @classmethod
    def start(cls, task: Task, backend: Backend, records: Records, tell: Callable[[Trial | MemoryProbe], None]) -> Self:
        """Return the state before anything was measured."""
        own = replace(task.own, micro_batch=min(task.own.micro_batch, task.batch_size))
        model = MemoryModel(batch_size=task.batch_size, budget_bytes=task.memory_bytes)
        prober = MemoryProber(
            own=own, threads=max(task.space.threads), model=model, backend=backend, records=records, tell=tell
        )  # fmt: skip
        return cls(task, backend, records, tell, own, task.batch_size, task.space, prober, task.seconds)

    @property
    def reference(self) -> Plan:
        """Return the plan that others are confirmed against."""
        return self.default or self.own

    @property
    def crowded(self) -> bool:
        """Return whether others hold processors that the container counts as its own."""
        return self.space != self.task.space

    @property
    def part(self) -> float:
        """Return the share of a whole batch in a measured step."""
        return self.cut / self.task.batch_size

    @property
    def left_s(self) -> float:
        """Return the seconds until the longest time is over."""
        return self.task.seconds - self.backend.now()
