"""`python -m tools.bench.speed`: run the named parts, or all, each under a heading and with its seconds."""

import argparse
import time
from collections.abc import Callable
from typing import Final

from tools.bench.speed import others, roof
from tools.bench.speed.common import BenchOptions

PARTS: Final[dict[str, Callable[[BenchOptions], None]]] = {
    "others": others.main,
    "roof": roof.main,
}


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.speed", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--recipes", nargs="*", default=["fast", "balanced", "best"], metavar="NAME")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    asked = BenchOptions(recipes=tuple(given.recipes))
    for part in given.parts or PARTS:
        began = time.monotonic()
        print(f"\n## {part}\n", flush=True)
        PARTS[part](asked)
        print(f"\n({part} took {time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
