"""A recording: the steps of all candidate plans of one cell, and the other answers that a search asks of a backend."""

from typing import Final

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from calibration.measure.protocol import Measured, Probed
from preflight.contract.plan import Plan
from tools.bench.lines import ResultFile
from tools.bench.record import RESULTS


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPlan:
    """Measurements of a plan."""

    plan: Plan
    blocks: tuple[Measured, ...]
    """Blocks of steps of `Recording.samples` samples, round by round with those of the other plans."""
    sample_s: float
    """Seconds of validating a sample."""
    cosine: float
    """Cosine of its gradients with those of the user's own plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Measurements in a cell."""

    version: str
    date: str
    machine: str
    cell: str
    """Name of the cell."""
    processors: float
    busy: bool
    batch_size: int
    samples: int
    """Samples of a measured step: parts of batches where a whole one is slow."""
    steps_per_epoch: int
    validation: int
    threads: tuple[int, ...]
    affinity: int
    bfloat16: bool
    memory_bytes: int
    start_s: float
    """Seconds until a measuring process was ready."""
    gauge_s: float
    probes: dict[int, Probed]
    """Probes by micro-batch."""
    plans: tuple[RecordedPlan, ...]
    """Plans: the user's own first; then the grid; then single changes of the user's own."""


RECORDING: Final = TypeAdapter(Recording)
FILE: Final = ResultFile(RESULTS / "ablation.jsonl", RECORDING)


def load() -> list[Recording]:
    """Return the recordings, each cell's last."""
    return list({recording.cell: recording for recording in FILE.read().values}.values())
