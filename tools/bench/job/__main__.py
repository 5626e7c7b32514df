"""From enqueue to result, against an earlier version: a real Redis, a real worker of each version, jobs in turns.

    PYTHONPATH=tests python -m tools.bench.job [--revision COMMIT] [--rounds N] [--cpu-python PYTHON]
    PYTHONPATH=tests python -m tools.bench.job --many 200

A round starts a worker of each version with empty directories: the first job of the recipe `fast` is cold (no data set
is prepared, no plan is known), the next ones are warm, a job after another in turns. Then both calibrate `cnn`, and
`preflight train --recipe fast` runs as a whole process. Wall time is from just before enqueue until a waiting client
has the result; the times of the events divide it into stages, and the run fails where those do not add up.

`--many` gives one worker many small jobs and reports its resources after them.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.bench.job.many import many_jobs
from tools.bench.job.sides import Side, measure_round
from tools.bench.job.tables import write_bounds, write_stages
from tools.bench.record import start
from tools.bench.versions import checked_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line."""

    revision: str
    rounds: int
    cpu_python: Path | None
    many: int | None


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench.job", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--revision", default="f868e4d", help="the earlier version; by default 0.25.1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-python", type=Path, help="an interpreter with torch's CPU build, to measure, too")
    parser.add_argument("--many", type=int, metavar="JOBS", help="give one worker so many jobs instead")
    return Options(**vars(parser.parse_args(arguments)))


def compare(asked: Options) -> None:
    """Measure both versions in turns; print and write the tables."""
    with checked_out(asked.revision) as old, checked_out("HEAD") as new:
        sides = was, now = Side(old), Side(new)
        for side in sides:
            for python in (Path(sys.executable), *([asked.cpu_python] if asked.cpu_python else [])):
                side.run_command(python)  # its data set is prepared, its plan is known
        for number in range(asked.rounds):
            measure_round(sides[:: 1 if number % 2 == 0 else -1], asked.cpu_python)
        record = start("job", f"python -m tools.bench.job --revision {asked.revision} --rounds {asked.rounds}")
        record.version = now.name
        write_bounds(record, was, now)
        write_stages(record, was, now)
        record.write()


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    asked = parse(arguments)
    if asked.many is not None:
        many_jobs(asked.many)
    else:
        compare(asked)


if __name__ == "__main__":
    main(sys.argv[1:])
