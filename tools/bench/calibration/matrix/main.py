"""Run cells of the matrix, and print and write their tables."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol

from tools.bench.calibration.matrix import findings, tables
from tools.bench.calibration.matrix.cells import MEMORY, WORKLOADS, Cell, chosen_cells
from tools.bench.calibration.matrix.findings import FILE, Finding, Grid, Matrix, Training, runs_of
from tools.bench.calibration.matrix.grid import measure_grid
from tools.bench.calibration.matrix.steadiness import Pulse
from tools.bench.calibration.matrix.train import Place, train
from tools.bench.calibration.matrix.workloads import ROOT, python_path
from tools.bench.container import container
from tools.bench.lines import Deadline, ResultFile, Writer, newest_minor
from tools.bench.record import Record, start
from tools.faults.means import NotHere, neighbours
from worker.config.settings import load, service_environment

COMMAND: Final = "python -m tools.bench.calibration"
RUNS, BUSY_RUNS = 1, 3
"""Runs of a cell; a busy neighbour disturbs no two runs alike."""


class Measuring(Protocol):
    """Measures cells of the matrix."""

    def run(self, cell: Cell, number: int) -> Finding:
        """Return the finding of the run of that number of a cell."""
        ...

    def grid(self, cell: Cell) -> Grid | None:
        """Return the grid of a cell; None where it did not end."""
        ...


def measure_matrix(filters: Sequence[str], deadline: Deadline, runs: int = 0) -> None:
    """Measure the chosen cells that are not measured yet, and write the tables of every run.

    Raises:
        SystemExit: nothing can be measured here.
    """
    record = start("calibration-matrix", COMMAND, "process starts and imports, but in wall times")
    cells = chosen_cells(filters)
    with FILE.measuring() as writer, prepared_place(cells) as place:
        try:
            measure_cells(cells, Measured(place, record), FILE, writer, _wanted(runs, deadline))
        except NotHere as error:
            raise SystemExit(f"no cell can be measured: {error}") from error
    write_tables(record)


def write_tables(record: Record) -> None:
    """Write and print the tables of every run of the newest version."""
    tables.fill(record, findings.load())
    record.write()
    print("\n\n".join("\n".join(table.lines()) for table in record.tables))


def _wanted(runs: int, deadline: Deadline) -> Callable[[Cell], int]:
    def wanted(cell: Cell) -> int:
        return 0 if deadline.is_over() else runs or (BUSY_RUNS if cell.busy else RUNS)

    return wanted


def measure_cells(
    cells: Sequence[Cell],
    measuring: Measuring,
    file: ResultFile[Finding | Grid],
    writer: Writer[Finding | Grid],
    wanted: Callable[[Cell], int],
) -> None:
    """Measure each cell as often as it is wanted, and a grid where there is none of this version; every run stays."""
    for cell in cells:
        while len(done := runs_of(cell, _known(file).runs)) < wanted(cell):
            writer.begin(cell.name)
            found = measuring.run(cell, len(done))
            writer.append(found)
            print(_words(found, len(done) + 1), flush=True)
        trained = [run for run in done if not run.calibrated.exit_code]
        if wanted(cell) and trained and not any(grid.is_of(trained[-1]) for grid in _known(file).grids):
            writer.begin(f"grid of {cell.name}")
            grid = measuring.grid(cell)
            if grid is not None:
                writer.append(grid)


def _known(file: ResultFile[Finding | Grid]) -> Matrix:
    return findings.load(file, newest_minor([version("preflight-worker")]))


@dataclass(frozen=True, slots=True)
class Measured:
    """Measures cells in real containers."""

    place: Place
    record: Record

    def run(self, cell: Cell, number: int) -> Finding:
        """Train in a container, with calibration and without: the other way round in every other run."""
        kinds = [True] if cell.busy else [True, False] if number % 2 == 0 else [False, True]
        with container(cell.processors, MEMORY[cell.memory]) as box, neighbours(int(cell.busy)):
            trained: dict[bool, Training] = {each: train(cell, box, self.place, calibrate=each) for each in kinds}
        return Finding(
            version=self.record.version, revision=_revision(), date=self.record.date, machine=self.record.machine,
            processors=cell.processors, memory=cell.memory, workload=cell.workload, busy=cell.busy,
            samples=cell.samples, calibrated=trained[True], plain=trained.get(False),
        )  # fmt: skip

    def grid(self, cell: Cell) -> Grid | None:
        """Measure the grid in a container."""
        with container(cell.processors, MEMORY[cell.memory]) as box, neighbours(int(cell.busy)), Pulse(cell) as pulse:
            rates = measure_grid(cell, box, self.place)
        return None if rates is None else Grid(
            version=self.record.version, date=self.record.date, machine=self.record.machine,
            processors=cell.processors, workload=cell.workload, busy=cell.busy, rates=rates, reference_s=pulse.mean(),
        )  # fmt: skip


@contextmanager
def prepared_place(cells: Sequence[Cell]) -> Iterator[Place]:
    """Prepare the data sets outside of any container."""
    with tempfile.TemporaryDirectory(prefix="bench-matrix-") as name:
        directory = Path(name)
        place = Place(directory=directory, prepared=directory / "prepared", python_path=python_path(directory / "site"))
        place.prepared.mkdir()
        environment = {**service_environment(load()), "PYTHONPATH": place.python_path}
        for dataset in {WORKLOADS[cell.workload].dataset for cell in cells}:
            command = [sys.executable, "-m", "tools.bench.calibration.matrix.workloads", dataset, str(place.prepared)]
            subprocess.run(command, env=environment, check=True)
        yield place


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _words(finding: Finding, number: int) -> str:
    run, plain = finding.calibrated, finding.plain
    if run.deviation is None:
        said = run.sentence or "not predicted"
    else:
        said = (
            f"predicted {run.predicted_s:.1f} ({run.low_s:.1f} to {run.high_s:.1f}) s, measured {run.measured_s:.1f} s "
            f"({run.deviation:+.1%}; machine {'unknown' if run.slower is None else f'{run.slower:+.1%}'})"
        )
    without = "" if plain is None else f", without {plain.wall_s:.1f} s"
    return f"{finding.cell.name}, run {number}: {said}; {run.plan}; wall {run.wall_s:.1f} s{without}"
