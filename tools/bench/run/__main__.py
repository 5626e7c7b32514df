"""Steps a second of unmodified scripts under `preflight run`, under fixed settings and as plain commands.

PYTHONPATH=tests python -m tools.bench.run [SCRIPT ...] [--cpus 2 1] [--kinds quiet "1 neighbour"] [--minutes 55]
PYTHONPATH=tests python -m tools.bench.run table [--page docs/how-to/run.md]

A cell is a script in a container with a CPU quota, quiet or with processes `while True: pass` outside of it. A pair
is one turn of all variants in a cell; it becomes a line of the result file, and the next call continues after it. No
pair begins that would end after `--minutes`. Every pair counts. Steps of the first `--after` seconds of `preflight run`
are left out. It is compared with the fixed settings that were fastest in the median.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tools.bench.lines import Deadline, ResultFile
from tools.bench.record import describe_machine
from tools.bench.run.cells import (
    BUSY_CPUS,
    GRID,
    KINDS,
    PAIRS,
    PLAIN,
    QUIET_CPUS,
    TUNED,
    Cell,
    Lengths,
    all_cells,
    measure_turn,
)
from tools.bench.run.pairs import PAIR, Pair, fixed_to_measure
from tools.bench.run.table import render, write_into

RESULTS: Final = Path(__file__).parents[1] / "results" / "run.jsonl"
STARTING: Final = 6.0
"""Seconds that imports and the first steps of a variant take, about."""


def main(arguments: Sequence[str]) -> None:
    """Measure pairs, or print the table of all."""
    if arguments[:1] == ["table"]:
        _print_table(arguments[1:])
        return
    asked = _parser().parse_args(arguments)
    every = all_cells()
    names = {cell.script for cell in every}
    unknown = set(asked.scripts) - names
    if unknown:
        raise SystemExit(f"there is no script {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    lengths = Lengths(after=asked.after, counted=asked.counted, fixed_after=asked.fixed_after)
    scripts = asked.scripts or names
    cells = [
        cell for cell in every
        if cell.script in scripts and cell.cpus in asked.cpus and cell.kind in asked.kinds
    ]  # fmt: skip
    if not cells:
        raise SystemExit(f"with neighbours there are cells under {BUSY_CPUS:g} CPUs alone; leave out --cpus")
    _measure(cells, ResultFile(asked.results, PAIR), lengths, asked.pairs, Deadline.after(asked.minutes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scripts", nargs="*", help="all without any")
    parser.add_argument("--cpus", type=float, nargs="+", choices=QUIET_CPUS, default=QUIET_CPUS)
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of each cell, those of earlier calls included")
    parser.add_argument("--minutes", type=float, default=55.0)
    parser.add_argument("--after", type=float, default=60.0)
    parser.add_argument("--counted", type=float, default=15.0)
    parser.add_argument("--fixed-after", type=float, default=3.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


def _measure(cells: Sequence[Cell], file: ResultFile[Pair], lengths: Lengths, wanted: int, deadline: Deadline) -> None:
    """Measure one pair of each cell after the other, until all have as many as are wanted or the time is over."""
    machine = describe_machine()
    print(f"{len(cells)} cells; {machine}; load {os.getloadavg()[0]:.1f}", flush=True)
    with file.measuring() as writer:
        for number, cell in itertools.product(range(1, wanted + 1), cells):
            done = [pair for pair in file.read().values if pair.cell == cell]
            if len(done) >= number:
                continue
            variants = [PLAIN, TUNED, *fixed_to_measure(done)]
            turn = [*variants[number % len(variants) :], *variants[: number % len(variants)]]
            seconds = sum(STARTING + lengths.of(name, cell)[1] for name in turn)
            if deadline.is_over(seconds):
                print(f"the next pair takes {seconds:.0f} s, which is longer than is left; call it again to continue")
                return
            load = os.getloadavg()[0]
            at = datetime.now(UTC).isoformat(timespec="seconds")
            writer.begin(f"{cell.script}, {cell.cpus:g} CPU, {cell.kind}")
            runs = measure_turn(cell, turn, lengths)
            pair = Pair(
                cell=cell, runs=runs, at=at, version=version("preflight-worker"), machine=machine, load=load,
                counted=lengths.counted, after=lengths.after,
            )  # fmt: skip
            writer.append(pair)
            figures = ", ".join(f"{name} {runs[name].rate:.3g}" for name in (PLAIN, TUNED, *GRID) if name in runs)
            print(f"{cell.script}, {cell.cpus:g} CPU, {cell.kind}, pair {number}: {figures}", flush=True)


def _print_table(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.run table")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="write it between the marks of this page")
    asked = parser.parse_args(arguments)
    table = render(ResultFile(asked.results, PAIR).read())
    print(table)
    if asked.page is not None:
        write_into(asked.page, table)


if __name__ == "__main__":
    main(sys.argv[1:])
