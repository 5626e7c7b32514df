"""What was measured in a cell: a line of tools/bench/results/calibration-matrix.jsonl."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from tools.bench.calibration.matrix.cells import Cell
from tools.bench.record import RESULTS

STEADY: Final = 0.05
"""Change of the machine's own speed up to which it counts as quiet."""
SAME: Final = 0.10
"""Difference (of the logarithm) of the machine's own speed up to which plans compare alike. Between the two speeds
that it was seen at, a third apart, the best plan of two processors changes."""
SINCE: Final = (0, 19, 0)
"""The first version whose cells count: the next where what calibration does in these containers changes."""
PATH: Final = RESULTS / "calibration-matrix.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A whole `preflight train`."""

    wall_s: float
    """Of the command: starts, imports, calibration, training and test."""
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
    """Of the epoch, validation included."""
    seen: str = ""
    """What the training itself said of a deviation from its prediction."""
    adapted: int = 0
    """Changes of the plan while it trained."""
    reference_s: float | None = None
    """Seconds of the reference workload while the plan was measured."""
    training_reference_s: float | None = None
    """The same while it trained."""
    slower: float | None = None
    """How much longer the machine itself took for the same work while it trained than when the plan was measured; None
    also where a version before 0.23.4 looked at one processor alone, which does not show what disturbs two."""

    @property
    def deviation(self) -> float | None:
        """Measured / predicted - 1."""
        if not self.predicted_s or self.measured_s is None:
            return None
        return self.measured_s / self.predicted_s - 1

    @property
    def covered(self) -> bool:
        """Whether the interval holds what was measured."""
        if self.measured_s is None or self.low_s is None or self.high_s is None:
            return False
        return self.low_s <= self.measured_s <= self.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A cell that was measured."""

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
    """Of the epoch that was trained."""
    calibrated: Training
    plain: Training | None = None
    """The same without calibration; None beside a neighbour."""
    grid: dict[str, float] | None = None
    """Plan -> samples per second, the means of blocks, medians before 0.24.0; None where another cell has one for a
    machine as fast."""
    grid_reference_s: float | None = None
    """Seconds of the reference workload while the grid was measured."""
    seconds: float
    """That this cell took to measure, the first time."""

    @property
    def judged(self) -> bool:
        """Whether it failed, or is known to have kept the machine's speed or not."""
        return bool(self.calibrated.exit_code) or self.calibrated.slower is not None

    @property
    def steady(self) -> bool:
        """Whether the machine kept its speed from calibration to training."""
        change = self.calibrated.slower
        return change is not None and abs(change) <= STEADY

    @property
    def kind(self) -> str:
        """The machine's processors."""
        return self.machine.partition(",")[0]

    @property
    def cell(self) -> Cell:
        """The cell."""
        return Cell(processors=self.processors, memory=self.memory, workload=self.workload, busy=self.busy)


FINDING: Final = TypeAdapter(Finding)


def same_speed(one_s: float | None, other_s: float | None) -> bool:
    """Whether the reference workload took about as long both times.

    What was measured before 0.23.4, without a reference, may be compared with anything.
    """
    return one_s is None or (other_s is not None and abs(math.log(one_s / other_s)) <= SAME)


def grid_of(finding: Finding, grids: Sequence[Finding]) -> Mapping[str, float] | None:
    """Return the newest grid of as many processors of the same kind and the same model, from a machine as fast."""
    plan_s = finding.calibrated.reference_s
    alike = [each for each in grids if (each.cell.where, each.kind) == (finding.cell.where, finding.kind)]
    return next((each.grid for each in reversed(alike) if same_speed(plan_s, each.grid_reference_s)), None)


def append(finding: Finding) -> None:
    """Add a line; what an interruption left of one ends before it."""
    cut = PATH.exists() and not PATH.read_bytes().endswith(b"\n")
    with PATH.open("ab") as file:
        file.write(b"\n" * cut + FINDING.dump_json(finding) + b"\n")


def load() -> Sequence[Finding]:
    """Return the last finding of each cell since `SINCE`, the newest last."""
    found: dict[str, Finding] = {}
    for finding in load_all():
        found.pop(finding.cell.name, None)
        found[finding.cell.name] = finding
    return list(found.values())


def load_grids() -> Sequence[Finding]:
    """Return all findings with a grid since `SINCE`, the newest last."""
    return [finding for finding in load_all() if finding.grid]


def load_all() -> Iterator[Finding]:
    """Yield all findings since `SINCE`; a line that is not whole is left out."""
    for line in PATH.read_bytes().splitlines() if PATH.exists() else ():
        with suppress(ValidationError):
            finding = FINDING.validate_json(line)
            if numbers(finding.version) >= SINCE:
                yield finding


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, which compare as it does."""
    return tuple(map(int, version.split(".")))
