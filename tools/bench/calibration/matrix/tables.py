"""The tables of the matrix, over every run of a version; runs on a steady machine and on others are separate."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from preflight.numbers import plural
from tools.bench.calibration.matrix.cells import MEMORY, WORKLOADS, all_cells
from tools.bench.calibration.matrix.findings import Finding, Matrix, Training, runs_of
from tools.bench.record import Cell, Record, Table, judged

USUAL, MOST = 0.08, 0.15
"""Deviations from the prediction that are counted."""
NEAR_STEADY, NEAR_ALL = 0.85, 0.75
"""Shares of the runs within `MOST`: of the steady ones, and of all."""
COVERED: Final = 0.90
WIDTH: Final = 1.3
"""Median of high / low of the intervals."""
OF_BEST, OF_BEST_SHARE = 0.95, 0.90
"""Speed of the chosen plan against the best of the grid, and the share of runs that reach it."""
LONGER, LONGER_S, LONGER_SHARE = 0.03, 2.0, 0.95
"""How much longer a training with calibration may take: the larger one of a share and seconds; share of the cells."""
LONGEST, PAIRS = 0.10, 5
"""How much longer it may take in the median of a cell, and the pairs of that cell."""
GIB: Final = 1 << 30


def fill(record: Record, matrix: Matrix) -> None:
    """Add the tables: bounds first, then a row for each run."""
    order = {cell.name: number for number, cell in enumerate(all_cells())}
    runs = sorted(matrix.runs, key=lambda run: order.get(run.cell.name, 0))
    record.tables += [_bounds(runs, matrix), _trainings(runs, matrix), _rows(runs, matrix)]
    versions = {run.version for run in runs}
    if versions:
        record.version = max(versions)
        record.date = max(run.date for run in runs)
        machines = Counter(run.machine for run in runs)
        several = len(machines) > 1
        record.machine = "; ".join(f"{name} ({count} runs)" if several else name for name, count in machines.items())


Figure = Callable[[Sequence[Finding]], str]


def _bounds(runs: Sequence[Finding], matrix: Matrix) -> Table:
    """Return the table of the predictions."""
    quiet = [run for run in runs if not run.busy]
    steady = [run for run in quiet if run.steady]
    columns = [runs, steady, [run for run in quiet if not run.steady], [run for run in runs if run.busy]]
    told = [[run for run in column if run.calibrated.deviation is not None] for column in columns]
    table = Table((
        "bound", "every run", "steady machine", "unsteady or unknown", "one busy neighbour", "asked", "",
    ))  # fmt: skip

    def row(label: str, figure: Figure, asked: str = "", reached: bool | None = None) -> None:
        shown = (figure(column) if column else "" for column in told)
        table.rows.append((label, *shown, asked, "" if reached is None else judged(reached)))

    def within(most: float) -> Figure:
        return lambda column: _share(sum(abs(run.calibrated.deviation or 0.0) <= most for run in column), len(column))

    every, steady_told, *_ = told
    row("predicted epochs", lambda column: str(len(column)))
    if not every:
        return table
    covered = sum(run.calibrated.covered for run in every)
    row("95 % intervals that hold the measured epoch", lambda column: _share(
        sum(run.calibrated.covered for run in column), len(column)
    ), f"{COVERED:.0%}", covered >= COVERED * len(every))  # fmt: skip
    row("their high / low, median", lambda column: f"{_width(column):.2f}", f"{WIDTH:g}", _width(every) <= WIDTH)
    row("their interval score, share of the epoch, mean", lambda column: f"{_score(column):.2f}")
    row(f"measured within {MOST:.0%} of its prediction", within(MOST),
        f"{NEAR_STEADY:.0%} of steady, {NEAR_ALL:.0%} of all",
        (not steady_told or _near(steady_told) >= NEAR_STEADY) and _near(every) >= NEAR_ALL)  # fmt: skip
    row(f"within {USUAL:.0%}", within(USUAL))
    row("the farthest", lambda column: _farthest(column))
    table.notes.append(
        f"Not in the figures, because they did not end: {matrix.lost} (killed, interrupted, or a torn line). "
        "Interval score: Gneiting and Raftery 2007, eq. 43; less is better."
    )
    return table


def _trainings(runs: Sequence[Finding], matrix: Matrix) -> Table:
    """Return the table of the choice and of whole trainings."""
    table = Table(("bound", "every run", "asked", ""))
    cells = {run.cell.name for run in runs}
    table.rows.append(("cells measured", f"{len(cells)} of {len(all_cells())}", "", ""))
    shares = [(share, run) for run in runs if (share := matrix.of_best(run)) is not None]
    if shares:
        good = sum(share >= OF_BEST for share, _ in shares)
        least, where = min(shares, key=lambda each: each[0])
        table.rows.append((f"chosen plan at least {OF_BEST:g} of the best of its grid; the least",
            f"{_share(good, len(shares))}; {least:.3f} ({_where(where)})", f"{OF_BEST_SHARE:.0%}",
            judged(good >= OF_BEST_SHARE * len(shares))))  # fmt: skip
    gaps = _gaps(runs)
    if gaps:
        good = sum(gap <= _allowed(found) for gap, _, found in gaps)
        table.rows.append((
            f"cells whose training with calibration took at most {LONGER:.0%} or {LONGER_S:g} s longer (median)",
            _share(good, len(gaps)), f"{LONGER_SHARE:.0%}", judged(good >= LONGER_SHARE * len(gaps)),
        ))  # fmt: skip
        most, relative, found = max(gaps, key=lambda each: each[1])
        table.rows.append((f"most of it in a cell; of {PAIRS} pairs in turns where they were made",
            f"{most:+.1f} s, {relative:+.0%} ({_where(found[0])}, {plural(len(found), 'pair')})", f"{LONGEST:+.0%}",
            judged(relative <= LONGEST)))  # fmt: skip
    trained = [each for run in runs for each in (run.calibrated, run.plain) if each is not None]
    killed = sum(each.killed + (each.exit_code < 0) for each in trained)
    table.rows += [
        ("kills of a supervisor", f"{killed} of {len(trained)}", "0", judged(killed == 0)),
        ("trainings that ended in an error, as in too little memory", str(sum(each.exit_code > 0 for each in trained)),
         "", ""),
        ("runs during which the system clock was set", str(sum(each.clock_jumped for each in trained)), "", ""),
    ]  # fmt: skip
    return table


def _gaps(runs: Sequence[Finding]) -> list[tuple[float, float, list[Finding]]]:
    """Return for each cell by how much its trainings took longer with calibration: seconds, share, and the runs."""
    found = []
    for cell in dict.fromkeys(run.cell for run in runs):
        pairs = [run for run in runs_of(cell, runs) if run.longer is not None]
        if pairs:
            seconds = statistics.median(run.longer or 0.0 for run in pairs)
            share = statistics.median((run.longer or 0.0) / _plain_s(run) for run in pairs)
            found.append((seconds, share, pairs))
    return found


def _allowed(pairs: Sequence[Finding]) -> float:
    return max(LONGER_S, LONGER * statistics.median(_plain_s(run) for run in pairs))


def _plain_s(run: Finding) -> float:
    return run.plain.wall_s if run.plain else 0.0


def _rows(runs: Sequence[Finding], matrix: Matrix) -> Table:
    table = Table((
        "CPU", "memory", "trained", "predicted (95 %)", "measured", "", "machine", "plan", "of the grid's best",
        "calibration", "wall time", "without",
    ))  # fmt: skip
    for run in runs:
        share, calibrated = matrix.of_best(run), run.calibrated
        beside = ", beside a neighbour" if run.busy else ""
        table.rows.append((
            f"{run.processors:g}", _memory(run), f"{WORKLOADS[run.workload].model}, {run.samples:,} samples{beside}",
            *_prediction(calibrated), "" if calibrated.slower is None else f"{calibrated.slower:+.0%}",
            calibrated.plan, "" if share is None else f"{share:.2f}",
            "" if calibrated.calibration_s is None else f"{calibrated.calibration_s:.1f} s",
            _wall(calibrated), _wall(run.plain),
        ))  # fmt: skip
    return table


def _prediction(run: Training) -> tuple[Cell, ...]:
    if run.deviation is None:
        return "", "failed" if run.exit_code else "not predicted", ""
    missed = "" if run.covered else ", not in the interval"
    return (
        f"{run.predicted_s:.1f} ({run.low_s or 0.0:.1f} to {run.high_s or 0.0:.1f}) s", f"{run.measured_s:.1f} s",
        f"{run.deviation:+.1%}{missed}",
    )  # fmt: skip


def _near(runs: Sequence[Finding]) -> float:
    return sum(abs(run.calibrated.deviation or 0.0) <= MOST for run in runs) / max(1, len(runs))


def _width(runs: Sequence[Finding]) -> float:
    return statistics.median((run.calibrated.high_s or 0.0) / (run.calibrated.low_s or 1.0) for run in runs)


def _score(runs: Sequence[Finding]) -> float:
    return statistics.fmean(run.calibrated.score or 0.0 for run in runs)


def _farthest(runs: Sequence[Finding]) -> str:
    run = max(runs, key=lambda each: abs(each.calibrated.deviation or 0.0))
    return f"{run.calibrated.deviation:+.1%} ({_where(run)})"


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.0%})" if of else ""


def _wall(run: Training | None) -> str:
    return "" if run is None else "failed" if run.exit_code else f"{run.wall_s:.1f} s"


def _memory(run: Finding) -> str:
    size = MEMORY[run.memory]
    return f"{size // GIB} GiB" if size >= GIB else f"{size >> 20} MiB"


def _where(run: Finding) -> str:
    return f"{run.processors:g} CPU, {_memory(run)}, `{WORKLOADS[run.workload].model}`"
