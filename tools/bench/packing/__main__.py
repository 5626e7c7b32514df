"""Jobs an hour of real workers with a real Redis: packed, one at a time, and by two workers, in turns.

    python -m tools.bench.packing [PART ...] [--minutes N]
    python -m tools.bench.packing simulate

A worker starts with empty directories, so that the first job of each kind calibrates. `cnn` and `mixed` take 20 minutes
each, `resnet18` 40, `fast` and `lone` four, `freed` two, each of `memory-1`, `memory-2` and `memory-4` ten.
"""

import statistics
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from tools.bench.packing.memory import GIBIBYTES, memory
from tools.bench.packing.scene import JOBS, ended, enqueue, events, failures, workers
from tools.bench.packing.simulated import simulate
from tools.bench.pieces import Bench, Row
from tools.bench.record import judged, samples, start

PAIRS: Final = 5
COUNT: Final = 8
"""Jobs of a run."""
SIDES: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    "off": (1, {"PREFLIGHT_PACKING": "off"}),
    "packed": (1, {"PREFLIGHT_PACKING": "throughput"}),
    "two": (2, {"PREFLIGHT_PACKING": "throughput", "PREFLIGHT_PROCESSES": "1"}),
}
"""Side -> workers on one state directory, and their variables."""
MIXES: Final[Mapping[str, tuple[str, ...]]] = {**{name: (name,) for name in JOBS}, "mixed": tuple(JOBS)}
BOUNDS: Final = {"cnn": 1.15, "fast": 1.1, "resnet18": 0.98, "mixed": 1.05}
"""Mix -> least ratio of the jobs an hour packed to those one at a time."""
TWO_WORKERS: Final = 0.95
"""Least ratio of the jobs an hour of two workers to those of one that packs."""
LONE: Final = 0.98
FREED_SECONDS: Final = 2.0


def mix(name: str) -> list[Row]:
    """Return the rows of `COUNT` jobs of a mix."""
    hourly = _turns(MIXES[name], COUNT, tuple(SIDES))
    packed, twos = _ratios(hourly, "packed", "off"), _ratios(hourly, "two", "packed")
    return [
        (f"jobs an hour, {COUNT} of {name}", samples(hourly["packed"], ",.0f"),
         f"{samples(hourly['off'], ',.0f')} one at a time",
         f"{samples(packed, '.2f')} of it, at least {BOUNDS[name]:g}",
         judged(statistics.median(packed) >= BOUNDS[name])),
        (f"two workers, {COUNT} of {name}", samples(hourly["two"], ",.0f"),
         f"{samples(hourly['packed'], ',.0f')} by one that packs",
         f"{samples(twos, '.2f')} of it, at least {TWO_WORKERS:g}", judged(statistics.median(twos) >= TWO_WORKERS)),
    ]  # fmt: skip


def lone() -> list[Row]:
    """Return the row of one job, where a worker could pack and where it may not."""
    hourly = _turns(MIXES["cnn"], 1, ("off", "packed"))
    ratios = _ratios(hourly, "packed", "off")
    seconds = {side: [3600 / each for each in rates] for side, rates in hourly.items()}
    return [(
        "seconds of a lone job", samples(seconds["packed"], ".1f", " s"),
        f"{samples(seconds['off'], '.1f', ' s')} one at a time",
        f"{samples(ratios, '.2f')} of the speed beside it, at least {LONE:g}",
        judged(statistics.median(ratios) >= LONE),
    )]  # fmt: skip


def freed() -> list[Row]:
    """Return the row of the processors that a job leaves to the one next to it."""
    taken = [_taken() for _ in range(PAIRS)]
    return [(
        "seconds until freed processors train", samples(taken, ".2f", " s"), "",
        f"at most {FREED_SECONDS:g} s in each of {PAIRS}", judged(max(taken) <= FREED_SECONDS),
    )]  # fmt: skip


def _taken() -> float:
    """Return the seconds from the end of a short job until the long one next to it has its processor."""
    with workers(1, {"PREFLIGHT_PACKING": "throughput"}) as running:
        long, short = (
            enqueue(running, {"model": "cnn", "epochs": epochs, "plan": {"threads": 2}}) for epochs in (50, 1)
        )
        ended(running, [short])
        left = max(at for at, _ in events(running, short))
        while running.client.is_active(long):
            for at, event in events(running, long):
                if event.type == "plan_adapted" and event.after > event.before and at >= left:
                    running.client.cancel(long)
                    return at - left
            time.sleep(0.1)
    return float("inf")


def _turns(kinds: tuple[str, ...], count: int, sides: tuple[str, ...]) -> dict[str, list[float]]:
    """Return the jobs an hour of each side; the sides take turns, in another order in every second one."""
    hourly: dict[str, list[float]] = {side: [] for side in sides}
    for pair in range(PAIRS):
        for side in sides if pair % 2 == 0 else sides[::-1]:
            with workers(*SIDES[side]) as running:
                jobs = [enqueue(running, JOBS[kinds[number % len(kinds)]]) for number in range(count)]
                hourly[side].append(3600 * count / ended(running, jobs))
                if failed := failures(running, jobs):
                    raise SystemExit(f"{failed} jobs failed:\n{running.log.read_text()[-2000:]}")
            print(f"{' '.join(kinds)}, {count} jobs, pair {pair}, {side}: {hourly[side][-1]:,.0f} an hour", flush=True)
    return hourly


def _ratios(hourly: Mapping[str, list[float]], side: str, beside: str) -> list[float]:
    return [one / other for one, other in zip(hourly[side], hourly[beside], strict=True)]


BENCH: Final = Bench(
    name="packing", command="python -m tools.bench.packing", leaves_out="nothing: from the start to the last job's end",
    parts={
        **{name: partial(mix, name) for name in MIXES}, "lone": lone, "freed": freed,
        **{f"memory-{size}": partial(memory, size) for size in GIBIBYTES},
    },
)  # fmt: skip


def main() -> None:
    """Measure, or simulate hosts of many cores."""
    if sys.argv[1:] == ["simulate"]:
        record = start("packing-simulated", "python -m tools.bench.packing simulate")
        simulate(record)
        record.write()
    else:
        BENCH.main(__doc__)


if __name__ == "__main__":
    main()
