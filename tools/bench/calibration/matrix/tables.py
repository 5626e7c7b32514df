"""The tables of the matrix, from its findings."""

from collections.abc import Sequence
from typing import Final

from tools.bench.calibration.matrix.cells import MEMORY, WORKLOADS, all_cells
from tools.bench.calibration.matrix.findings import STEADY, Finding, Training, grid_of, numbers, same_speed
from tools.bench.record import Cell, Record, Table, judged

MOST: Final = 0.15
"""Deviation of any cell from its prediction."""
USUAL: Final = 0.08
"""Deviation of `SHARE` of the cells."""
BUSY: Final = 0.20
"""The same beside one busy neighbour."""
SHARE: Final = 0.90
COVERED: Final = 0.90
RUNS: Final = 60
"""Runs that the share of covered ones is asked of."""
OF_BEST: Final = 0.95
"""Speed of the chosen plan against the best of the grid."""
LONGER, LONGER_S = 0.03, 2.0
"""How much longer a training with calibration may take: the larger one of a share and seconds."""
GIB: Final = 1 << 30

Grids = Sequence[Finding]


def fill(record: Record, findings: Sequence[Finding], grids: Grids) -> None:
    """Add the tables: bounds first, then a row for each cell; `grids` are findings with one, the newest last."""
    order = {cell.name: number for number, cell in enumerate(all_cells())}
    findings = sorted(findings, key=lambda finding: order.get(finding.cell.name, 0))
    quiet = [finding for finding in findings if not finding.busy]
    busy = [finding for finding in findings if finding.busy]
    record.tables += [_bounds(quiet, busy, grids), _cells(quiet, grids), *([_neighbour(busy)] if busy else [])]


def worst(findings: Sequence[Finding]) -> Finding | None:
    """Return the finding that is farthest from its prediction."""
    told = [finding for finding in findings if finding.calibrated.deviation is not None]
    return max(told, key=lambda finding: abs(finding.calibrated.deviation or 0.0), default=None)


def _bounds(quiet: Sequence[Finding], busy: Sequence[Finding], grids: Grids) -> Table:
    table = Table(("bound", "figure", "asked", ""))
    cells = sum(not cell.busy for cell in all_cells())
    versions = sorted({finding.version for finding in (*quiet, *busy)}, key=numbers)
    table.rows.append((f"cells measured of {cells}, by {' and '.join(versions)}", str(len(quiet)), "", ""))
    _predictions(table, quiet, grids)
    _trainings(table, [*quiet, *busy])
    if busy:
        far = [abs(finding.calibrated.deviation) for finding in busy if finding.calibrated.deviation is not None]
        near = sum(each <= BUSY for each in far)
        table.rows.append((f"one busy neighbour: predicted within {BUSY:.0%}", f"{near} of {len(far)}", f"{SHARE:.0%}",
            judged(near >= SHARE * len(far))))  # fmt: skip
    return table


def _predictions(table: Table, quiet: Sequence[Finding], grids: Grids) -> None:
    """Add prediction, where the machine kept its speed, and choice of plan."""
    judged_cells = [finding for finding in quiet if finding.calibrated.slower is not None]
    steady = [finding for finding in judged_cells if finding.steady]
    table.rows.append((f"cells where the machine kept its speed within {STEADY:.0%}",
        f"{len(steady)} of {len(judged_cells)}", "", ""))  # fmt: skip
    far = [abs(finding.calibrated.deviation) for finding in steady if finding.calibrated.deviation is not None]
    first = worst(steady)
    if first is not None:
        near = sum(each <= USUAL for each in far)
        table.rows += [
            ("worst cell: measured against predicted", f"{first.calibrated.deviation:+.1%} ({_where(first)})",
             f"{MOST:.0%}", judged(max(far) <= MOST)),
            (f"of them within {USUAL:.0%} of their prediction", f"{near} of {len(far)}", f"{SHARE:.0%}",
             judged(near >= SHARE * len(far))),
        ]  # fmt: skip
    chosen = [(share, finding) for finding in quiet if (share := of_best(finding, grids)) is not None]
    if chosen:
        least, where = min(chosen, key=lambda each: each[0])
        table.rows.append(("worst cell: chosen plan against the best of its grid",
            f"{least:.3f} ({_where(where)})", f"{OF_BEST:.2f}", judged(least >= OF_BEST)))  # fmt: skip


def _trainings(table: Table, findings: Sequence[Finding]) -> None:
    """Add coverage, kills and what calibration cost."""
    runs = [finding.calibrated for finding in findings if finding.calibrated.deviation is not None]
    covered = sum(run.covered for run in runs)
    enough = covered >= COVERED * len(runs)
    table.rows.append(("95 % intervals that hold the measured epoch", f"{covered} of {len(runs)}",
        f"{COVERED:.0%} of {RUNS}", judged(enough) if len(runs) >= RUNS or not enough else "too few runs"))  # fmt: skip
    trainings = [each for finding in findings for each in (finding.calibrated, finding.plain) if each is not None]
    killed = sum(each.killed + (each.exit_code < 0) for each in trainings)
    table.rows.append(("kills of a supervisor", f"{killed} of {len(trainings)}", "0", judged(killed == 0)))
    others = sum(each.other_kills for each in trainings)
    table.rows.append(("kills for memory on the whole machine meanwhile, children included", str(others), "", ""))
    pairs = [(gap, finding) for finding in findings if (gap := _longer(finding)) is not None]
    if pairs:
        gap, where = max(pairs, key=lambda pair: pair[0] - _allowed(pair[1]))
        table.rows.append(("worst cell: calibrated training against plain, wall time",
            f"{gap:+.1f} s ({_where(where)})", f"{LONGER:.0%} or {LONGER_S:g} s",
            judged(gap <= _allowed(where))))  # fmt: skip


def _cells(quiet: Sequence[Finding], grids: Grids) -> Table:
    table = Table((
        "CPU", "memory", "trained", "predicted (95 %)", "measured", "", "machine", "plan", "of the grid's best",
        "calibration", "wall time", "without", "",
    ))  # fmt: skip
    for finding in quiet:
        share, gap = of_best(finding, grids), _longer(finding)
        table.rows.append((
            *_head(finding), *_prediction(finding.calibrated, MOST),
            "" if finding.calibrated.slower is None else f"{finding.calibrated.slower:+.0%}",
            finding.calibrated.plan, "" if share is None else f"{share:.2f}",
            "" if finding.calibrated.calibration_s is None else f"{finding.calibrated.calibration_s:.1f} s",
            _wall(finding.calibrated), _wall(finding.plain),
            "" if gap is None else judged(gap <= _allowed(finding)),
        ))  # fmt: skip
        for label, each in (("", finding.calibrated), ("without calibration: ", finding.plain)):
            if each is not None and each.exit_code:
                table.notes.append(f"{_where(finding)}: {label}{each.sentence}  ")
        if abs(finding.calibrated.deviation or 0.0) > MOST and finding.calibrated.seen:
            table.notes.append(f"{_where(finding)}: the log said that {finding.calibrated.seen}  ")
    return table


def _neighbour(busy: Sequence[Finding]) -> Table:
    table = Table(("one busy neighbour: CPU", "memory", "trained", "predicted (95 %)", "measured", "", "plan"))
    for finding in busy:
        table.rows.append((*_head(finding), *_prediction(finding.calibrated, BUSY), finding.calibrated.plan))
    return table


def of_best(finding: Finding, grids: Grids) -> float | None:
    """Return the speed of the chosen plan against the best of a grid; None where it is in none."""
    grid = grid_of(finding, grids) or {}
    rate = next((rate for name, rate in grid.items() if finding.calibrated.plan.startswith(name)), None)
    return None if rate is None else rate / max(grid.values())


def _longer(finding: Finding) -> float | None:
    """Return how many seconds longer the training with calibration took; None where that is not known.

    It is not where one of both failed, or the machine was slower in one.
    """
    plain, calibrated = finding.plain, finding.calibrated
    if plain is None or plain.exit_code or calibrated.exit_code:
        return None
    alike = same_speed(calibrated.training_reference_s, plain.training_reference_s)
    return calibrated.wall_s - plain.wall_s if alike else None


def _allowed(finding: Finding) -> float:
    return max(LONGER_S, LONGER * finding.plain.wall_s) if finding.plain else LONGER_S


def _head(finding: Finding) -> tuple[Cell, ...]:
    trained = f"{WORKLOADS[finding.workload].model}, {finding.samples:,} samples"
    return f"{finding.processors:g}", _memory(finding), trained


def _prediction(run: Training, bound: float) -> tuple[Cell, ...]:
    if run.deviation is None:
        return "", "failed" if run.exit_code else "not predicted", ""
    low, high = run.low_s or 0.0, run.high_s or 0.0
    verdict = "" if abs(run.deviation) <= bound else ", missed"
    return (
        f"{run.predicted_s:.1f} ({low:.1f} to {high:.1f}) s",
        f"{run.measured_s:.1f} s",
        f"{run.deviation:+.1%}{verdict}",
    )


def _wall(run: Training | None) -> str:
    return "" if run is None else "failed" if run.exit_code else f"{run.wall_s:.1f} s"


def _memory(finding: Finding) -> str:
    size = MEMORY[finding.memory]
    return f"{size // GIB} GiB" if size >= GIB else f"{size >> 20} MiB"


def _where(finding: Finding) -> str:
    return f"{finding.processors:g} CPU, {_memory(finding)}, `{WORKLOADS[finding.workload].model}`"
