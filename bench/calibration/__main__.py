"""`python -m bench.calibration`: run the parts and print their tables; exit code 1 when a kill broke something."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

from bench.calibration import kills, naive, quota, seconds
from bench.calibration.common import BenchOptions
from bench.calibration.matrix.cells import is_filter
from bench.calibration.matrix.main import measure_matrix
from bench.parts import add_parts, require_known, run_parts

PARTS: Final[dict[str, Callable[[BenchOptions], bool]]] = {
    "matrix": lambda asked: measure_matrix(asked.filters, again=asked.again),
    "seconds": seconds.main,
    "naive": naive.main,
    "quota": quota.main,
    "kills": kills.main,
}
"""Each prints its table and returns whether nothing is broken; a bound that was missed is not, on a busy machine."""


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.calibration", description=__doc__)
    add_parts(parser, PARTS)
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="calibrations that are struck")
    parser.add_argument("--again", action="store_true", help="measure cells of the matrix that are measured already")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="kills at the same time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    options = parser.parse_args()
    parts = [each for each in options.parts if not is_filter(each)]
    filters = [each for each in options.parts if is_filter(each)]
    require_known(parser, parts, PARTS)
    asked = BenchOptions(
        kills=options.kills, parallel=options.parallel, seed=options.seed, filters=filters, again=options.again
    )
    return 0 if all(run_parts(PARTS, parts, asked)) else 1


if __name__ == "__main__":
    sys.exit(main())
