"""The same training as a whole command: plain PyTorch, and `preflight train` cold and warm, in real containers.

PYTHONPATH=tests python -m tools.bench.claim [NETWORK ...] [--cpus 0.5 1 2] [--pairs N] [--minutes N]
PYTHONPATH=tests python -m tools.bench.claim table

A pair is one turn of the three commands in a container with a CPU quota, alone or with one `while True: pass` outside
of it. It becomes a line of tools/bench/results/claim.jsonl, and the next call continues after it. Every pair counts.
"""

import argparse
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from tools.bench.claim import cells, table
from tools.bench.claim.cells import CPUS, NETWORKS, Cell, Pair
from tools.bench.lines import Deadline, add_minutes, newest_minor
from tools.bench.record import describe_machine, start

COMMAND = "python -m tools.bench.claim"


def main() -> None:
    """Measure pairs, and write the table of all."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)}; all without any")
    parser.add_argument("--cpus", type=float, nargs="+", default=CPUS)
    parser.add_argument("--beside", type=int, nargs="+", choices=(0, 1), default=(0, 1), help="busy processes outside")
    parser.add_argument("--pairs", type=int, default=1, help="of each cell, those of earlier calls included")
    add_minutes(parser)
    asked = parser.parse_args()
    if asked.networks != ["table"]:
        if unknown := sorted(set(asked.networks) - set(NETWORKS)):
            parser.error(f"there is no training {', '.join(unknown)}; there are {', '.join(NETWORKS)}")
        places = itertools.product(map(bool, asked.beside), asked.networks or NETWORKS, asked.cpus)
        wanted = [Cell(network, cpus, busy) for busy, network, cpus in places]
        measure(wanted, asked.pairs, Deadline.after(asked.minutes))
    record = start("claim", COMMAND, "nothing: whole commands")
    table.fill(record)
    record.write()
    print("\n\n".join("\n".join(each.lines()) for each in record.tables))


def measure(wanted: Sequence[Cell], pairs: int, deadline: Deadline) -> None:
    """Measure one pair of each cell after the other, until all have as many as are wanted or the time is over."""
    machine, mine = describe_machine(), version("preflight-worker")
    with cells.FILE.measuring() as writer:
        for number, cell in itertools.product(range(pairs), wanted):
            known = [pair for pair in cells.FILE.read().values if pair.cell == cell]
            done = [pair for pair in known if pair.version.startswith(newest_minor([mine]))]
            if len(done) > number:
                continue
            if deadline.is_over(max((pair.seconds for pair in known), default=0.0)):
                print("the next pair takes longer than is left; call it again to continue")
                return
            writer.begin(cell.name)
            runs = cells.measure_turn(cell, plain_first=number % 2 == 0)
            at = datetime.now(UTC).isoformat(timespec="seconds")
            writer.append(Pair(cell=cell, runs=runs, at=at, version=mine, machine=machine))
            said = ", ".join(f"{name} {run.seconds:.1f} s" for name, run in runs.items())
            print(f"{cell.name}, pair {number + 1}: {said}", flush=True)


if __name__ == "__main__":
    main()
