"""Make all figures of README.md and docs/benchmarks.md: `make bench`, three and a half hours, in pieces that continue.

    PYTHONPATH=tests python -m tools.bench.measure [PIECE ...] [--minutes N] [--again]

A piece whose results are of this minor version is left out. With `--minutes` none begins that would take longer than is
left; the next call continues. `list` prints them, with how many minutes each takes, about.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tools.bench.lines import Deadline, add_minutes, newest_minor
from tools.bench.record import RESULTS, load

IMAGE_PYTHON: Final = Path(__file__).parents[2] / "build" / "cpu" / "bin" / "python"
"""An environment with the packages of the image, which `make bench` makes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A benchmark."""

    name: str
    """Name of the piece, and of its result."""
    command: str
    minutes: float
    """Minutes that it takes on two processors, about."""
    continues: bool = False
    """Whether it keeps its measurements when it is ended, so that it may begin whatever time is left."""


PIECES: Final = (
    Piece("footprint", f"footprint --image-python {IMAGE_PYTHON}", 3),
    Piece("job", f"job --cpu-python {IMAGE_PYTHON}", 10),
    Piece("job-many", "job --many 200", 6),
    Piece("web", "web", 2),
    Piece("roof", "speed roof", 3),
    Piece("others", "speed others", 2),
    Piece("accuracy", "speed.accuracy", 35, continues=True),
    Piece("claim", "claim", 88, continues=True),
    Piece("calibration-matrix", "calibration 1g", 58, continues=True),
)
"""The other memory limits of the matrix are `make bench-calibration`; long tables have their own commands."""
ELSEWHERE: Final = {
    "containers": "make containers", "listing": "python -m tools.bench.listing",
    "calibration-cold": "python -m tools.bench.cold", "predict": "python -m tools.bench.predict",
    "finetune": "PYTHONPATH=tests python -m tools.bench.finetune", "data-import": "python -m tools.bench.data_import",
    "ablation-pairs": "python -m tools.ablation pairs", "run-cost": "PYTHONPATH=tests python -m tools.bench.run.cost",
    "data-page": "python -m tools.bench.data_page", "packing": "python -m tools.bench.packing",
}  # fmt: skip


def main() -> int:
    """Run pieces; return the exit code."""
    names = [piece.name for piece in PIECES]
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.measure", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=f"list, or of {', '.join(names)}; all without any")
    parser.add_argument("--again", action="store_true", help="measure what is of this version, too")
    add_minutes(parser)
    asked = parser.parse_args()
    if asked.pieces == ["list"]:
        for piece in PIECES:
            print(f"{piece.name:20} {piece.minutes:5g} min  {'measured' if is_measured(piece) else ''}")
        print(f"{'all':20} {sum(piece.minutes for piece in PIECES):5g} min")
        return 0
    if unknown := sorted(set(asked.pieces) - set(names)):
        parser.error(f"there is no {', '.join(unknown)}; there are list, {', '.join(names)}")
    chosen = [piece for piece in PIECES if piece.name in (asked.pieces or names)]
    if not IMAGE_PYTHON.exists() or find_spec("lightning") is None:
        parser.error("packages of other trainings are missing; `make bench BENCH=PIECE` installs them")
    return run(chosen, Deadline.after(asked.minutes), again=asked.again)


def run(pieces: Sequence[Piece], deadline: Deadline, *, again: bool = False) -> int:
    """Run the pieces that are not measured yet; one that fails does not keep the others from it."""
    failed, left = [], []
    for piece in pieces:
        if is_measured(piece) and not again and not piece.continues:
            continue
        if deadline.is_over(0.0 if piece.continues else 60 * piece.minutes):
            left.append(piece.name)
            continue
        command = [sys.executable, "-m", *f"tools.bench.{piece.command}".split()]
        if piece.continues:
            command += ["--minutes", f"{deadline.minutes_left():.1f}"]
        print(f"\n## {piece.name}, about {piece.minutes:g} minutes\n", flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(piece.name)
    for words, names in (("failed", failed), ("are left; call it again to continue", left)):
        if names:
            print(f"\n{', '.join(names)}: {words}", file=sys.stderr)
    return int(bool(failed))


def is_measured(piece: Piece) -> bool:
    """Whether the result is of this minor version."""
    if not (RESULTS / f"{piece.name}.json").exists():
        return False
    return load(piece.name).version.startswith(newest_minor([version("preflight-worker")]))


def command_for(name: str) -> str:
    """Return the command that measures a table."""
    for piece in PIECES:
        if piece.name == name:
            return f"python -m tools.bench.measure {name}"
    return ELSEWHERE.get(name, "make bench")


if __name__ == "__main__":
    sys.exit(main())
