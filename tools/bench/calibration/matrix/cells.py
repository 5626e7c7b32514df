"""Cells of the matrix, the most telling first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PROCESSORS: Final = (0.5, 1.0, 1.5, 0.25, 0.75, 2.0)
MEMORY: Final = {"1g": 1 << 30, "512m": 512 << 20, "2g": 2 << 30, "4g": 4 << 30}
SECONDS: Final = 20.0
"""Seconds that an epoch should take under a good plan."""
LEAST_STEPS: Final = 8
SCALES: Final = 4.0
"""Processors up to which an epoch grows with them."""
BATCH: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training, of `rate` samples per second and processor under a good plan."""

    dataset: str
    model: str
    rate: float
    grid_batch: int
    """Samples of a step in the grid: fewer where a step takes seconds."""


WORKLOADS: Final = {
    "cnn": Workload(dataset="mnist-short", model="cnn", rate=6_000, grid_batch=BATCH),
    "resnet18": Workload(dataset="mnist-short", model="resnet18", rate=90, grid_batch=32),
    "own_task": Workload(dataset="shapes", model="shapes-net", rate=5_000, grid_batch=BATCH),
}
"""`mnist-short` is MNIST with 1,000 test samples; `shapes` and `shapes-net` are those of deploy/examples/own_task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A container and the training in it."""

    processors: float
    memory: str
    """Name of a size in `MEMORY`."""
    workload: str
    """Name of a training in `WORKLOADS`."""
    busy: bool = False
    """Whether a neighbour outside the container keeps one processor busy."""

    @property
    def name(self) -> str:
        """Return the name by which a filter finds it."""
        return f"{self.processors:g}cpu-{self.workload}-{self.memory}{'-busy' if self.busy else ''}"

    @property
    def where(self) -> tuple[float, str]:
        """Processors and training, on which a grid depends."""
        return self.processors, self.workload

    @property
    def samples(self) -> int:
        """Return the samples of an epoch, whole batches."""
        steps = WORKLOADS[self.workload].rate * min(self.processors, SCALES) * SECONDS / BATCH
        return BATCH * max(LEAST_STEPS, math.ceil(steps))

    @property
    def validation(self) -> int:
        """Return the validation samples."""
        return min(1_000, self.samples // 10)

    def matches(self, asked: str) -> bool:
        """Whether all parts of a filter are parts of the name."""
        return set(asked.split("-")) <= {*self.name.split("-"), "busy" if self.busy else "quiet"}


def all_cells() -> list[Cell]:
    """Return every cell: 1 GiB first, model by model, then a busy neighbour, then the other memory sizes."""
    first, *others = MEMORY

    def row(memory: str, workload: str, *, busy: bool = False) -> list[Cell]:
        return [Cell(processors=each, memory=memory, workload=workload, busy=busy) for each in PROCESSORS]

    cells = [cell for workload in WORKLOADS for cell in row(first, workload)]
    cells += row(first, "cnn", busy=True)
    return cells + [cell for memory in others for workload in WORKLOADS for cell in row(memory, workload)]


def chosen_cells(filters: Sequence[str]) -> list[Cell]:
    """Return the cells that match any of the filters; all without one."""
    return [cell for cell in all_cells() if not filters or any(cell.matches(each) for each in filters)]


def is_filter(word: str) -> bool:
    """Whether a word selects any cell."""
    return any(cell.matches(word) for cell in all_cells())
