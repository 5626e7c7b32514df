"""`python -m bench.speed`: run the parts and print their tables."""

import argparse
from collections.abc import Callable
from typing import Final

from bench.parts import add_parts, run_parts, see_that_known
from bench.speed import accuracy, data, memory, options, others, resnet, roof, telemetry
from bench.speed.common import Asked, describe_machine

PARTS: Final[dict[str, Callable[[Asked], None]]] = {
    "accuracy": accuracy.main,
    "others": others.main,
    "resnet": resnet.main,
    "roof": roof.main,
    "data": data.main,
    "options": options.main,
    "memory": memory.main,
    "telemetry": telemetry.main,
}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.speed", description=__doc__)
    add_parts(parser, PARTS)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="trainings for each time to an accuracy")
    parser.add_argument("--recipes", nargs="*", default=["fast", "balanced", "best"], metavar="NAME")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave out what others take")
    given = parser.parse_args()
    see_that_known(parser, given.parts, PARTS)
    asked = Asked(seeds=given.seeds, recipes=tuple(given.recipes), peers=given.peers)
    print(describe_machine(), flush=True)
    run_parts(PARTS, given.parts, asked)


if __name__ == "__main__":
    main()
