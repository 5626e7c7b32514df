"""A fleet of a thousand idle workers on one Redis, real ones and simulated ones that send the same commands.

    python -m tools.bench.fleet [--real N] [--total N] [idle] [latency] [restart] [jobs]

All parts, or those that are named, follow each other on one fleet; each takes less than five minutes.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tools.bench.fleet import idle, jobs, restart
from tools.bench.fleet.fleet import Fleet, fleet

IDLE_SECONDS: Final = 30.0
LATENCY_SECONDS: Final = 30.0
PARTS: Final[Mapping[str, Callable[[Fleet, str], None]]] = {
    "idle": lambda running, command: idle.measure(running, IDLE_SECONDS, command),
    "latency": lambda running, command: jobs.measure_latency(running, command, LATENCY_SECONDS),
    "restart": restart.measure,
    "jobs": lambda running, command: jobs.measure_jobs(running, command, jobs.JOBS),
}


def main(arguments: Sequence[str]) -> None:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.fleet", description=__doc__)
    parser.add_argument("--real", type=int, default=200)
    parser.add_argument("--total", type=int, default=1000)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args(arguments)
    real: int = chosen.real
    total: int = chosen.total
    parts: list[str] = chosen.parts or list(PARTS)
    with fleet(real, total, IDLE_SECONDS if "idle" in parts else 0) as running:
        for name in (each for each in PARTS if each in parts):
            PARTS[name](running, f"python -m tools.bench.fleet --real {real} --total {total} {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
