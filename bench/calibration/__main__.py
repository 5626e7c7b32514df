"""Measure what calibration promises, and print its tables.

PYTHONPATH=tests python -m bench.calibration matrix [CELL ...] [--again]
PYTHONPATH=tests python -m bench.calibration neighbour
PYTHONPATH=tests python -m bench.calibration cold
PYTHONPATH=tests python -m bench.calibration cores
"""

import argparse
from collections.abc import Callable

from bench.calibration.matrix.cells import is_filter
from bench.calibration.matrix.main import measure_matrix
from bench.calibration.threads.cold import measure_cold
from bench.calibration.threads.cores import measure_cores
from bench.calibration.threads.neighbour import measure_neighbour
from bench.parts import require_known, run_parts


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.calibration", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="parts, or words that select cells of `matrix`; all parts without any")
    parser.add_argument("--again", action="store_true", help="measure cells that are measured already")
    options = parser.parse_args()
    filters = [word for word in options.words if is_filter(word)]
    named = [word for word in options.words if not is_filter(word)]
    parts: dict[str, Callable[[bool], None]] = {
        "matrix": lambda again: measure_matrix(filters, again=again),
        "neighbour": lambda _: measure_neighbour(),
        "cold": lambda _: measure_cold(),
        "cores": lambda _: measure_cores(),
    }
    require_known(parser, named, parts)
    run_parts(parts, named, options.again)


if __name__ == "__main__":
    main()
