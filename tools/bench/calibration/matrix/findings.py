"""Measurements of a cell: a line of tools/bench/results/calibration-matrix.jsonl."""

import math
from collections.abc import Sequence
from typing import Final

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from tools.bench.calibration.matrix.cells import Cell
from tools.bench.lines import ResultFile, newest_minor
from tools.bench.record import RESULTS

STEADY: Final = 0.05
"""Change of the machine's own speed up to which it counts as steady."""
ALPHA: Final = 0.05
"""Share that the intervals leave out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A whole `preflight train`."""

    wall_s: float
    """Wall time of the command: starts, imports, calibration, training and test."""
    exit_code: int
    sentence: str = ""
    """Why it failed; empty where it did not."""
    killed: int = 0
    """Processes that the kernel killed in the container itself: worker and supervisor are there, children are not."""
    other_kills: int = 0
    """Other kills for memory on this machine meanwhile; calibration and training recover from those of children."""
    plan: str = ""
    calibration_s: float | None = None
    """Wall time of the calibration, process starts and imports included; None: there was none."""
    confidence: str = ""
    ratio: float | None = None
    """Speed of the plan against the user's own, as confirmed."""
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    """95 % interval."""
    measured_s: float | None = None
    """Seconds of the epoch, validation included."""
    seen: str = ""
    """Evidence that the training reported for a deviation from its prediction."""
    adapted: int = 0
    """Changes of the plan while it trained."""
    reference_s: float | None = None
    """Seconds of the reference workload while the plan was measured."""
    training_reference_s: float | None = None
    """The same while it trained."""
    slower: float | None = None
    """How much longer the machine itself took for the same work while it trained than when the plan was measured; None
    where a phase was too short for a sample, or the clock that samples and log share was set meanwhile."""
    clock_jumped: bool = False
    """Whether the system clock was set while it ran; its own seconds are those of another clock."""

    @property
    def deviation(self) -> float | None:
        """Measured / predicted - 1."""
        if not self.predicted_s or self.measured_s is None:
            return None
        return self.measured_s / self.predicted_s - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds the measured seconds."""
        if self.measured_s is None or self.low_s is None or self.high_s is None:
            return False
        return self.low_s <= self.measured_s <= self.high_s

    @property
    def score(self) -> float | None:
        """The interval score (Gneiting and Raftery 2007, eq. 43) as a share of the measured epoch; less is better.

        The width of the 95 % interval, and 2 / 0.05 times what it misses by: neither a wide interval nor one that
        misses wins.
        """
        if self.measured_s is None or self.low_s is None or self.high_s is None:
            return None
        missed = max(0.0, self.low_s - self.measured_s, self.measured_s - self.high_s)
        return (self.high_s - self.low_s + 2 / ALPHA * missed) / self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A run: a cell that was measured once."""

    version: str
    revision: str
    """Commit, `+` where files were changed."""
    date: str
    machine: str
    processors: float
    memory: str
    workload: str
    busy: bool
    samples: int
    """Samples of the epoch that was trained."""
    calibrated: Training
    plain: Training | None = None
    """The same without calibration; None with a busy neighbour."""

    @property
    def steady(self) -> bool:
        """Whether the machine is known to have kept its speed from calibration to training."""
        change = self.calibrated.slower
        return change is not None and abs(change) <= STEADY

    @property
    def cell(self) -> Cell:
        """The cell."""
        return Cell(processors=self.processors, memory=self.memory, workload=self.workload, busy=self.busy)

    @property
    def longer(self) -> float | None:
        """Seconds by which the training with calibration took longer; None where one failed or there is no other."""
        plain = self.plain
        if plain is None or plain.exit_code or self.calibrated.exit_code:
            return None
        return self.calibrated.wall_s - plain.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The speeds of all plans of a grid."""

    version: str
    date: str
    machine: str
    processors: float
    workload: str
    busy: bool = False
    """Whether a neighbour was there: two threads that are best alone are far from it there."""
    rates: dict[str, float]
    """Plan -> samples per second, means of blocks."""
    reference_s: float | None
    """Seconds of the reference workload while it was measured."""

    def is_of(self, finding: Finding) -> bool:
        """Whether it has as many processors of the same kind, the same model, and a neighbour where that has one."""
        mine = (self.processors, self.workload, self.busy, kind_of(self.machine))
        return mine == (finding.processors, finding.workload, finding.busy, kind_of(finding.machine))


LINES: Final[TypeAdapter[Finding | Grid]] = TypeAdapter(Finding | Grid)
FILE: Final = ResultFile(RESULTS / "calibration-matrix.jsonl", LINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Every run of one minor version."""

    version: str
    """Prefix of its versions."""
    runs: tuple[Finding, ...]
    grids: tuple[Grid, ...]
    lost: int
    """Runs that did not end."""

    def of_best(self, finding: Finding) -> float | None:
        """Return the speed of the chosen plan against the best of a grid; None where it is in none.

        Of several grids that of the machine's nearest speed counts: the best plan of two processors changes with it.
        """
        plan_s = finding.calibrated.reference_s

        def distance(grid: Grid) -> float:
            return abs(math.log(plan_s / grid.reference_s)) if plan_s and grid.reference_s else math.inf

        grid = min((each for each in self.grids if each.is_of(finding)), key=distance, default=None)
        rates = grid.rates if grid else {}
        rate = next((rate for name, rate in rates.items() if finding.calibrated.plan.startswith(name)), None)
        return None if rate is None else rate / max(rates.values())


def load(file: ResultFile[Finding | Grid] = FILE, version: str = "") -> Matrix:
    """Return every run of a version, by default of the newest minor version that was measured."""
    found = file.read()
    version = version or newest_minor([each.version for each in found.values])
    values = [each for each in found.values if each.version.startswith(version)]
    return Matrix(
        version=version, runs=tuple(each for each in values if isinstance(each, Finding)),
        grids=tuple(each for each in values if isinstance(each, Grid)), lost=found.lost_of(version),
    )  # fmt: skip


def runs_of(cell: Cell, runs: Sequence[Finding]) -> list[Finding]:
    """Return the runs of a cell."""
    return [run for run in runs if run.cell == cell]


def kind_of(machine: str) -> str:
    """Return the processors of a machine."""
    return machine.partition(",")[0]
