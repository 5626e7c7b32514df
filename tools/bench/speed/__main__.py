"""`python -m tools.bench.speed`: run the parts and print their tables."""

import argparse
from collections.abc import Callable
from typing import Final

from tools.bench.parts import add_parts, require_known, run_parts
from tools.bench.speed import accuracy, others, roof
from tools.bench.speed.common import BenchOptions

PARTS: Final[dict[str, Callable[[BenchOptions], None]]] = {
    "accuracy": accuracy.main,
    "others": others.main,
    "roof": roof.main,
}


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.speed", description=__doc__)
    add_parts(parser, PARTS)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="trainings for each time to an accuracy")
    parser.add_argument("--recipes", nargs="*", default=["fast", "balanced", "best"], metavar="NAME")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave out what others take")
    given = parser.parse_args()
    require_known(parser, given.parts, PARTS)
    asked = BenchOptions(seeds=given.seeds, recipes=tuple(given.recipes), peers=given.peers)
    run_parts(PARTS, given.parts, asked)


if __name__ == "__main__":
    main()
