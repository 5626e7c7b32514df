"""The matrix keeps every run: what was measured stays, and what did not end is counted."""

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import JsonValue

from tools.bench.calibration.matrix import findings, main, tables, train
from tools.bench.calibration.matrix.cells import Cell, all_cells
from tools.bench.calibration.matrix.findings import Finding, Grid, Training
from tools.bench.container import Container
from tools.bench.lines import ResultFile
from tools.bench.record import Record

BUSY = next(cell for cell in all_cells() if cell.busy)
CELLS = [cell for cell in all_cells() if cell.memory == "1g"][:3]
VERSION = version("preflight-worker")
File = ResultFile[Finding | Grid]


@pytest.fixture
def file(tmp_path: Path) -> File:
    return ResultFile(tmp_path / "matrix.jsonl", findings.LINES)


def training(measured_s: float = 20.0, *, low_s: float = 18.0, high_s: float = 22.0, slower: float = 0.01) -> Training:
    return Training(
        wall_s=measured_s + 8, exit_code=0, plan="1 thread, float32, contiguous, micro-batch 128", predicted_s=20.0,
        low_s=low_s, high_s=high_s, measured_s=measured_s, reference_s=0.002, slower=slower,
    )  # fmt: skip


def finding(cell: Cell, calibrated: Training | None = None, machine: str = "2 vCPUs of A, 4 GiB") -> Finding:
    return Finding(
        version=VERSION, revision="", date="2026-11-29", machine=machine, processors=cell.processors,
        memory=cell.memory, workload=cell.workload, busy=cell.busy, samples=cell.samples,
        calibrated=calibrated or training(), plain=None if cell.busy else Training(wall_s=27.0, exit_code=0),
    )  # fmt: skip


class Machine:
    """Measures without containers, and does something at a run."""

    def __init__(self, name: str = "A", at: int = -1, happens: Callable[[], None] = lambda: None) -> None:
        self.runs: list[str] = []
        self._name, self._at, self._happens = f"2 vCPUs of {name}, 4 GiB", at, happens

    def run(self, cell: Cell, number: int) -> Finding:
        if len(self.runs) == self._at:
            self._happens()
        self.runs.append(cell.name)
        return finding(cell, training(20.0 + number), self._name)

    def grid(self, cell: Cell) -> Grid | None:
        rates = {"1 thread, float32, contiguous": 90.0, "2 threads, float32, contiguous": 100.0}
        return Grid(
            version=VERSION, date="2026-11-29", machine=self._name, processors=cell.processors,
            workload=cell.workload, busy=cell.busy, rates=rates, reference_s=0.002,
        )  # fmt: skip


class Still:
    """A machine that keeps its speed."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    def __enter__(self) -> "Still":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def before(self, measured: datetime) -> float:  # noqa: ARG002 - the interface of a pulse
        return 0.002

    def between(self, first: datetime, last: datetime) -> float:  # noqa: ARG002
        return 0.002


def measure(file: File, machine: Machine, runs: int = 1, cells: Sequence[Cell] = CELLS) -> None:
    with file.measuring() as writer:
        main.measure_cells(cells, machine, file, writer, lambda _: runs)


def rendered(file: File) -> str:
    record = Record("calibration-matrix", "command", VERSION, "", "")
    tables.fill(record, findings.load(file))
    return "\n".join([record.machine, *(line for table in record.tables for line in table.lines())])


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupted_matrix_goes_on_and_counts_the_run_that_did_not_end(file: File) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(file, Machine(at=1, happens=interrupt))
    later = Machine()
    measure(file, later)
    assert later.runs == [cell.name for cell in CELLS[1:]]
    found = findings.load(file)
    assert (len(found.runs), len(found.grids), found.lost) == (3, 3, 1)
    assert "because they did not end: 1 " in rendered(file)


def test_every_run_of_a_cell_stands_in_the_file_and_the_table(file: File) -> None:
    """None takes the place of an earlier one, whatever the machine did meanwhile."""
    measure(file, Machine())
    measure(file, Machine(), runs=3)
    assert [run.calibrated.measured_s for run in findings.runs_of(CELLS[0], findings.load(file).runs)] == [20, 21, 22]
    assert rendered(file).count("cnn, 60,032 samples") == 3


def test_a_choice_is_judged_by_a_grid_with_the_same_neighbour(file: File) -> None:
    """What is best alone is not what is best beside a busy process: one grid says nothing about the other."""
    quiet = replace(BUSY, busy=False)
    measure(file, Machine(), cells=[quiet])
    with file.measuring() as writer:
        writer.append(finding(BUSY))
    busy = finding(BUSY)
    assert findings.load(file).of_best(busy) is None
    measure(file, Machine(), cells=[BUSY])
    found = findings.load(file)
    assert [(grid.busy, grid.processors) for grid in found.grids] == [(False, 0.5), (True, 0.5)]
    assert found.of_best(busy) == 0.9


def test_a_run_whose_process_was_killed_is_counted_and_holds_no_lock(file: File, tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom pydantic import TypeAdapter\n"
        "from tools.bench.lines import ResultFile\n"
        "with ResultFile(Path(sys.argv[1]), TypeAdapter(int)).measuring() as writer:\n"
        "    writer.begin('a cell')\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "matrix.jsonl")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [lost.begun for lost in file.read().lost if lost] == ["a cell"]
    measure(file, Machine())
    assert (len(findings.load(file).runs), findings.load(file).lost) == (3, 1)


def test_a_clock_that_jumps_costs_a_run_only_what_the_log_dates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured without the clock counts; whether the machine was steady is unknown."""
    began = datetime(2026, 11, 29, 12, tzinfo=UTC)
    events: list[tuple[int, dict[str, JsonValue]]] = [
        (1, {"event": "dataset_ready"}),
        (4, {"event": "calibration_winner", "source": "own", "trials": [1], "threads": 1, "precision": "float32",
             "memory_format": "contiguous", "allocator": "default", "loader_workers": 0, "affinity": "free",
             "micro_batch": 128}),
        (5, {"event": "training_config"}),
        (25, {"event": "epoch_done", "took_s": 20.0}),
        (26, {"event": "prediction_checked", "predicted_s": 19.0, "low_s": 18.0, "high_s": 21.0}),
    ]  # fmt: skip
    log = [{**event, "ts": (began + timedelta(seconds=second)).isoformat()} for second, event in events]
    (tmp_path / "memory.oom_control").write_text("oom_kill 0\n")
    box = Container((tmp_path,), first_version=True)
    (tmp_path / "prepared").mkdir()
    place = train.Place(directory=tmp_path, prepared=tmp_path / "prepared", python_path="")
    monkeypatch.setattr(train, "Pulse", Still)
    monkeypatch.setattr(train, "_run", lambda *_: (0, log))
    usual = train.train(CELLS[0], box, place, calibrate=True)
    assert (usual.calibration_s, usual.slower, usual.clock_jumped, usual.covered) == (4.0, 0.0, False, True)
    days = iter([0.0, 86_400.0])
    monkeypatch.setattr(train, "system_clock", lambda: next(days))
    jumped = train.train(CELLS[0], box, place, calibrate=True)
    assert jumped.clock_jumped
    assert (jumped.calibration_s, jumped.slower, jumped.measured_s, jumped.covered) == (None, None, 20.0, True)


def test_a_wide_interval_and_one_that_misses_both_lose() -> None:
    """Interval score: 4 s wide around 20 s is 0.2; one that misses by 1 s costs 40 s more."""
    assert training().score == pytest.approx(0.2)
    assert training(low_s=10.0, high_s=40.0).score == pytest.approx(1.5)
    assert training(23.0).score == pytest.approx((4 + 40) / 23)


def test_steady_runs_and_others_are_counted_apart(file: File) -> None:
    with file.measuring() as writer:
        for run in (training(), training(26.0, slower=0.3), training(19.0, slower=0.2)):
            writer.append(finding(CELLS[0], run))
        writer.append(finding(replace(CELLS[0], busy=True), training(25.0)))
    shown = rendered(file)
    holding = "| 2 of 4 (50%) | 1 of 1 (100%) | 1 of 2 (50%) | 0 of 1 (0%) | 90% | missed |"
    assert f"| 95 % intervals that hold the measured epoch {holding}" in shown
    assert "| the farthest | +30.0% (0.5 CPU, 1 GiB, `cnn`) | +0.0% (0.5 CPU" in shown
