"""`python -m bench.calibration matrix [CELL ...]`: measure what calibration promises, and print its tables."""

import argparse
import sys

from bench.calibration.matrix.cells import is_filter
from bench.calibration.matrix.main import measure_matrix
from bench.parts import require_known

MATRIX = "matrix"


def main() -> int:
    """Measure the cells that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.calibration", description=__doc__)
    parser.add_argument("cells", nargs="*", help="`matrix`, and words that select cells; all without any")
    parser.add_argument("--again", action="store_true", help="measure cells that are measured already")
    options = parser.parse_args()
    filters = [word for word in options.cells if is_filter(word)]
    require_known(parser, [word for word in options.cells if not is_filter(word)], {MATRIX: None})
    return 0 if measure_matrix(filters, again=options.again) else 1


if __name__ == "__main__":
    sys.exit(main())
