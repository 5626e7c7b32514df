"""The page in a real browser: Lighthouse, a comparison of long runs, and the first visit of a new user.

    PYTHONPATH=tests python -m tools.bench.page [lighthouse] [comparison] [first-visit] [--rounds N] [--keep FOLDER]

Needs Debian's `chromium` and `chromium-driver`, and `npm`, with which Lighthouse is installed into build/.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.bench.page import comparison, first_visit, lighthouse

PARTS = ("lighthouse", "comparison", "first-visit")


def main(arguments: Sequence[str]) -> None:
    """Run the parts that were asked for, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="folder for the reports of Lighthouse, and for pictures")
    asked = parser.parse_args(arguments)
    parts = asked.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    if "lighthouse" in parts:
        lighthouse.measure(asked.rounds, asked.keep)
    if "comparison" in parts:
        comparison.measure(asked.rounds)
    if "first-visit" in parts:
        first_visit.measure(asked.keep)


if __name__ == "__main__":
    main(sys.argv[1:])
