"""`python -m bench.speed`: run the parts and print their tables."""

import argparse
import time
from collections.abc import Callable
from typing import Final

from bench.speed import accuracy, data, memory, options, resnet, roof, telemetry
from bench.speed.common import Asked, describe_machine

PARTS: Final[dict[str, Callable[[Asked], None]]] = {
    "accuracy": accuracy.main,
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
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="trainings for each time to an accuracy")
    parser.add_argument("--recipes", nargs="*", default=["fast"], metavar="NAME")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave out what others take")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    asked = Asked(seeds=given.seeds, recipes=tuple(given.recipes), peers=given.peers)
    print(describe_machine(), flush=True)
    for part in given.parts or PARTS:
        began = time.monotonic()
        print(f"\n## {part}\n", flush=True)
        PARTS[part](asked)
        print(f"\n({part} took {time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
