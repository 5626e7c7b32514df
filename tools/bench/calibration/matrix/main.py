"""Run cells of the matrix, and print and write their tables."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tools.bench.calibration.matrix import findings, tables
from tools.bench.calibration.matrix.cells import MEMORY, WORKLOADS, Cell, chosen_cells
from tools.bench.calibration.matrix.findings import Finding, grid_of
from tools.bench.calibration.matrix.grid import measure_grid
from tools.bench.calibration.matrix.steadiness import Pulse
from tools.bench.calibration.matrix.train import Place, train
from tools.bench.calibration.matrix.workloads import ROOT, python_path
from tools.bench.container import container
from tools.bench.record import Record, start
from tools.faults.means import NotHere
from worker.config.settings import load, service_environment

NEIGHBOUR: Final = "while True: pass"
TRIES: Final = 3
"""Trainings of a quiet cell with calibration at most, until the machine keeps its speed from one to the other."""


def measure_matrix(filters: Sequence[str], *, again: bool) -> None:
    """Measure the cells that are asked for and not measured yet.

    Raises:
        SystemExit: nothing can be measured here.
    """
    record = start(
        "calibration-matrix",
        "python -m tools.bench.calibration matrix",
        "process starts and imports, but in wall times",
    )
    done = [] if again else [finding.cell for finding in findings.load() if finding.judged]
    cells = [cell for cell in chosen_cells(filters) if cell not in done]
    print(f"{len(cells)} of {len(chosen_cells(filters))} cells are to be measured; an interrupted run continues\n")
    with prepared_place(cells) as place:
        for number, cell in enumerate(cells, 1):
            try:
                for finding in _attempts(cell, place, record):
                    findings.append(finding)
                    _print(number, len(cells), finding)
            except NotHere as error:
                raise SystemExit(f"no cell can be measured: {error}") from error
    tables.fill(record, findings.load(), findings.load_grids())
    record.write()
    print("\n\n".join("\n".join(table.lines()) for table in record.tables))


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


def _attempts(cell: Cell, place: Place, record: Record) -> Iterator[Finding]:
    """Measure a cell; train again with calibration, `TRIES` times at most, where the machine changed its speed."""
    found = _measure(cell, place, record)
    yield found
    if found.calibrated.exit_code:
        return
    for _ in range(TRIES - 1):
        if found.steady or found.busy:
            break
        with container(cell.processors, MEMORY[cell.memory]) as box:
            found = replace(found, calibrated=train(cell, box, place, calibrate=True))
        yield found
    if not found.busy and grid_of(found, findings.load_grids()) is None:
        yield _with_grid(found, place)


def _measure(cell: Cell, place: Place, record: Record) -> Finding:
    """Measure a cell in a container of its own."""
    began = time.monotonic()
    with container(cell.processors, MEMORY[cell.memory]) as box, neighbours(int(cell.busy)):
        calibrated = train(cell, box, place, calibrate=True)
        plain = None if cell.busy else train(cell, box, place, calibrate=False)
    return Finding(
        version=record.version, revision=_revision(), date=record.date, machine=record.machine,
        processors=cell.processors, memory=cell.memory, workload=cell.workload, busy=cell.busy, samples=cell.samples,
        calibrated=calibrated, plain=plain, seconds=time.monotonic() - began,
    )  # fmt: skip


def _with_grid(finding: Finding, place: Place) -> Finding:
    """Measure the grid of a cell; again, `TRIES` times at most, where the machine changed its speed meanwhile."""
    cell = finding.cell
    for _ in range(TRIES):
        with container(cell.processors, MEMORY[cell.memory]) as box, Pulse(cell) as pulse:
            grid = measure_grid(cell, box, place)
        reference_s = pulse.steady()
        if grid is None or reference_s is not None:
            return replace(finding, grid=grid, grid_reference_s=reference_s)
    return finding


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run `count` busy processes outside of any container."""
    processes = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _print(number: int, count: int, finding: Finding) -> None:
    run, plain = finding.calibrated, finding.plain
    if run.deviation is None:
        said = run.sentence or "not predicted"
    else:
        said = (
            f"predicted {run.predicted_s:.1f} ({run.low_s:.1f} to {run.high_s:.1f}) s, measured {run.measured_s:.1f} s "
            f"({run.deviation:+.1%}; machine {run.slower or 0.0:+.1%})"
        )
    without = "" if plain is None else f", without {plain.wall_s:.1f} s"
    print(
        f"[{number}/{count}] {finding.cell.name}: {said}; {run.plan}; wall {run.wall_s:.1f} s{without}; "
        f"the cell took {finding.seconds:.0f} s",
        flush=True,
    )
