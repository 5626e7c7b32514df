"""Redis restarted under a fleet with jobs in its queue: all workers come back, spread over time; nothing is lost."""

import itertools
import time
from typing import Final

from tools.bench.fleet.fleet import Fleet
from tools.bench.fleet.jobs import REFUSED, end_of, enqueue, wait_for_end
from tools.bench.fleet.server import Cost
from tools.bench.record import judged, start

AWAY_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.5
LOOKS: Final = 24
JOBS: Final = 2000
ALIKE: Final = 0.99
"""Share of the connections that make all workers back."""


def measure(fleet: Fleet, command: str) -> None:
    """Print and write the tables."""
    before = fleet.server.cost().connections
    names = enqueue(fleet.queue, "restart", [REFUSED] * JOBS)
    fleet.server.stop()
    time.sleep(AWAY_SECONDS)
    fleet.server.start()
    looks = [fleet.server.cost()]
    for _ in range(LOOKS):
        time.sleep(LOOK_SECONDS)
        looks.append(fleet.server.cost())
    wait_for_end(fleet, names)
    ends = [end_of(fleet, name)[0] for name in names]
    wrong = sum(end != 1 for end in ends)
    back = next((look.at for look in looks if look.connections >= ALIKE * before), None)
    record = start("fleet-restart", command)
    record.head(f"Redis away for {AWAY_SECONDS:g} s under {fleet.total:,} workers and {JOBS:,} jobs", "", "")
    record.row("connections before", f"{before:,}", "")
    took = "not within the looks" if back is None else f"{back - looks[0].at:.1f}"
    record.row(f"seconds until {ALIKE:.0%} of them are back", took, judged(back is not None))
    record.row("jobs that ended not once", f"{wrong}", judged(wrong == 0))
    record.head("seconds after the restart", "connections", "new connections a second", "commands a second", "core")
    for earlier, later in itertools.pairwise(looks):
        record.row(*_cells(looks[0], earlier, later))
    record.write()


def _cells(first: Cost, earlier: Cost, later: Cost) -> tuple[str, ...]:
    seconds = later.at - earlier.at
    return (
        f"{later.at - first.at:.1f}", f"{later.connections:,}", f"{(later.received - earlier.received) / seconds:,.0f}",
        f"{sum(later.rates(earlier).values()):,.0f}", f"{later.cores(earlier):.0%}",
    )  # fmt: skip
