"""How long a calibration takes in a container, and how long it takes to find one that was made before.

    python -m bench.calibration seconds

`preflight calibrate --force-calibration` in a real cgroup of 1 GiB on two processors; then, in fresh interpreters in
the same cgroup, `choose_plan` on the plan that is now in the cache, and, for information, the whole command.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from faults.means import NotHere, memory_limit

from bench.calibration.common import PREFLIGHT, BenchOptions, mnist
from bench.record import judged, samples, start
from worker.config.settings import load, service_environment

RUNS: Final = {"cnn": 3, "resnet18": 1}
BOUNDS: Final = {"cnn": 5.0, "resnet18": 45.0}
"""Seconds of measuring, the starts of processes apart."""
HIT_BOUND: Final = 0.050
HITS: Final = 7
"""Fresh interpreters that ask the cache."""
MEMORY: Final = 1 << 30
PROCESSORS: Final = 2

Figures = dict[str, float]


def main(asked: BenchOptions) -> bool:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    record = start("calibration-seconds", "python -m bench.calibration seconds", "nothing: wall time, where not named")
    mnist()  # prepared beforehand: it is no part of a calibration
    with two_processors(), container() as enter:
        measured = {model: [calibrate(model, enter, "--force-calibration") for _ in range(RUNS[model])]
                    for model in RUNS}  # fmt: skip
        hits = [hit(model, enter) for model in RUNS for _ in range(HITS)]
        wholes = [wall_seconds(model, enter) for model in RUNS for _ in range(HITS)]
    record.head("figure", "median (range)", "bound", "")
    for model, runs in measured.items():
        seconds, imports = ([run[name] for run in runs] for name in ("calibration_seconds", "import_seconds"))
        record.row(f"calibration of {model}, wall time, {len(runs)} run(s)", samples(seconds, ".2f", " s"), "", "")
        measuring = [whole - part for whole, part in zip(seconds, imports, strict=True)]
        record.row(f"{model}: of it measuring", samples(measuring, ".2f", " s"), f"{BOUNDS[model]:g} s",
            judged(max(measuring) <= BOUNDS[model]))  # fmt: skip
        record.row(f"{model}: of it starting processes and importing torch", samples(imports, ".2f", " s"), "", "")
    seconds = [found["seconds"] for found in hits]
    record.row(f"cache hit, {len(hits)} interpreters", samples(seconds, ".4f", " s"), f"{HIT_BOUND:g} s",
        judged(statistics.median(seconds) <= HIT_BOUND))  # fmt: skip
    record.row("`preflight calibrate` on a hit, the whole command", samples(wholes, ".3f", " s"), "", "")
    found, torch = sum(found["hit"] for found in hits), sum(found["torch"] for found in hits)
    record.note(f"{found:.0f} of {len(hits)} found the plan in the cache, {torch:.0f} had torch imported by then "
          f"(bound: none, {judged(torch == 0 and found == len(hits))})")  # fmt: skip
    record.write()
    return True


@contextmanager
def two_processors() -> Iterator[None]:
    """Keep this process and what it starts on two processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:PROCESSORS])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def container() -> Iterator[Sequence[str]]:
    """Yield the command that enters a cgroup; an empty one, and a word about it, where none can be made."""
    with ExitStack() as stack:
        try:
            enter = stack.enter_context(memory_limit(MEMORY))
            where = f"in a cgroup of {MEMORY >> 20} MiB"
        except NotHere as error:
            enter, where = [], f"**without a memory limit: {error}**"
        print(f"{where}, on {len(os.sched_getaffinity(0))} processor(s)\n")
        yield enter


def calibrate(model: str, enter: Sequence[str], *options: str) -> Figures:
    """Run the command and return what it printed."""
    done = subprocess.run(
        [*enter, PREFLIGHT, "calibrate", "--dataset", "mnist", "--model", model, "--json", *options],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    figures: Figures = json.loads(done.stdout)
    return figures


def wall_seconds(model: str, enter: Sequence[str]) -> float:
    """Return what the whole command takes when the plan is in the cache."""
    began = time.perf_counter()
    calibrate(model, enter)
    return time.perf_counter() - began


def hit(model: str, enter: Sequence[str]) -> Figures:
    """Return what a fresh interpreter says of its first look into the cache."""
    command = [*enter, sys.executable, "-m", "bench.calibration.hit", model]
    figures: Figures = json.loads(subprocess.check_output(command, env=environment()))
    return figures


def environment() -> Mapping[str, str]:
    """Return the environment of a service with this one's settings."""
    return service_environment(load())
