"""Confirm what stays: real searches of this version and of another one, in turns, in each recorded cell.

The training for which a search chooses its plan is that of the recording, under that plan.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from preflight.contract.plan import Plan
from tools.ablation.record import CELLS
from tools.ablation.recording import Recording, load
from tools.ablation.replay import epoch_seconds
from tools.bench.calibration.common import PREFLIGHT
from tools.bench.calibration.matrix.cells import MEMORY, WORKLOADS, Cell
from tools.bench.calibration.matrix.main import prepared_place
from tools.bench.calibration.matrix.train import Place
from tools.bench.calibration.matrix.workloads import ROOT
from tools.bench.container import Container, container
from tools.bench.lines import Deadline, ResultFile
from tools.bench.record import RESULTS, Record, samples, start
from tools.faults.means import neighbours

EPOCHS: Final = 3
"""Epochs of the training, each some 20 s under a good plan: longer ones leave a search's cost in their noise."""
COUNTS: Final = 0.02
"""Share of the time from which on a pair counts as slower."""
LIMIT: Final = 300.0
"""Seconds after which a search is ended, and the command with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Seconds of calibration and training, by the former version and by this one."""

    cell: str
    version: str
    former_s: float
    this_s: float


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="ignore"))
class Searched:
    """What `preflight calibrate --json` prints of a search."""

    calibration_seconds: float
    plan: Plan


PAIR: Final = TypeAdapter(Pair)
SEARCHED: Final = TypeAdapter(Searched)
FILE: Final = ResultFile(RESULTS / "ablation-pairs.jsonl", PAIR)


def measure(other: Path, pairs: int, deadline: Deadline) -> None:
    """Measure pairs in each cell until it has so many, those of earlier calls included, and print the table."""
    record = start("ablation-pairs", "python -m tools.ablation pairs CHECKOUT", "nothing")
    recordings = {one.cell: one for one in load()}
    with FILE.measuring() as writer, prepared_place(CELLS) as place:
        for number in range(pairs):  # a round of all cells, so that none is measured within one state of the machine
            for cell in CELLS:
                known = sum(pair.cell == cell.name for pair in FILE.read().values)
                if known > number or deadline.is_over():
                    continue
                writer.begin(cell.name)
                roots = (other, ROOT) if number % 2 else (ROOT, other)
                with container(cell.processors, MEMORY[cell.memory]) as box, neighbours(int(cell.busy)):
                    seconds = {root: _seconds(recordings[cell.name], cell, box, place, root) for root in roots}
                writer.append(
                    Pair(cell=cell.name, version=record.version, former_s=seconds[other], this_s=seconds[ROOT])
                )
    _print_table(record)


def _seconds(recording: Recording, cell: Cell, box: Container, place: Place, root: Path) -> float:
    """Return the seconds of a search by the version in a checkout, and of the training under its plan."""
    workload, name = WORKLOADS[cell.workload], "search"
    command = [
        *box.enter, str(root / Path(PREFLIGHT).relative_to(ROOT)), "calibrate", "--json", "--dataset", workload.dataset,
        "--model", workload.model, "--epochs", str(EPOCHS), "--epoch-samples", str(cell.samples),
        "--set", f"validation_samples={cell.validation}",
    ]  # fmt: skip
    environment = dict(place.environment(name))
    environment["PYTHONPATH"] = environment["PYTHONPATH"].replace(str(ROOT), str(root))
    done = subprocess.run(command, env=environment, capture_output=True, timeout=LIMIT, check=True)
    shutil.rmtree(place.directory / name)
    found = SEARCHED.validate_json(done.stdout)
    return found.calibration_seconds + EPOCHS * epoch_seconds(recording, found.plan)


def _print_table(record: Record) -> None:
    """Print and write the ratio of the times in each cell; below 1 this version is quicker."""
    record.head("cell", "pairs", "former version", "this version", "this by former", "slower")
    cells: dict[str, list[Pair]] = {}
    for pair in FILE.read().values:
        cells.setdefault(pair.cell, []).append(pair)
    for name, pairs in cells.items():
        ratios = [pair.this_s / pair.former_s for pair in pairs]
        former, this = zip(*((pair.former_s, pair.this_s) for pair in pairs), strict=True)
        times = [samples(seconds, ".1f", " s") for seconds in (former, this)]
        verdict = "every pair" if min(ratios) > 1 + COUNTS else ""
        record.row(name, str(len(pairs)), *times, samples(ratios, ".3f"), verdict)
    record.write()
