"""`python -m bench.calibration`: run the parts and print their tables; exit code 1 when a kill broke something."""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

from bench.calibration import grid, kills, naive, prediction, quota, seconds
from bench.calibration.common import BenchOptions
from bench.parts import add_parts, require_known, run_parts

PARTS: Final[dict[str, Callable[[BenchOptions], bool]]] = {
    "seconds": seconds.main,
    "grid": grid.main,
    "naive": naive.main,
    "prediction": prediction.main,
    "quota": quota.main,
    "kills": kills.main,
}
"""Each prints its table and returns whether nothing is broken; a bound that was missed is not, on a busy machine."""


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.calibration", description=__doc__)
    add_parts(parser, PARTS)
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="calibrations that are struck")
    parser.add_argument("--runs", type=int, default=10, metavar="N", help="trainings whose prediction is checked")
    parser.add_argument("--parallel", type=int, default=1, metavar="N", help="kills at the same time")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    options = parser.parse_args()
    require_known(parser, options.parts, PARTS)
    asked = BenchOptions(kills=options.kills, runs=options.runs, parallel=options.parallel, seed=options.seed)
    return 0 if all(run_parts(PARTS, options.parts, asked)) else 1


if __name__ == "__main__":
    sys.exit(main())
