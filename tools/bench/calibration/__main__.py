"""Measure the promises of calibration, and print their tables.

PYTHONPATH=tests python -m tools.bench.calibration [CELL ...] [--runs N] [--minutes N]
PYTHONPATH=tests python -m tools.bench.calibration table
"""

import argparse

from tools.bench.calibration.matrix.cells import is_filter
from tools.bench.calibration.matrix.main import COMMAND, measure_matrix, write_tables
from tools.bench.lines import Deadline, add_minutes
from tools.bench.record import start


def main() -> None:
    """Measure the chosen cells, or write the tables."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="CELL", help="parts of names of cells; all without any")
    parser.add_argument("--runs", type=int, default=0, help="of each cell, earlier ones included; by default 1, busy 3")
    add_minutes(parser)
    asked = parser.parse_args()
    if asked.words == ["table"]:
        write_tables(start("calibration-matrix", COMMAND))
        return
    unknown = [word for word in asked.words if not is_filter(word)]
    if unknown:
        parser.error(f"no cell has {', '.join(unknown)} in its name; names are like 0.5cpu-cnn-1g and 1cpu-cnn-1g-busy")
    measure_matrix(asked.words, Deadline.after(asked.minutes), asked.runs)


if __name__ == "__main__":
    main()
