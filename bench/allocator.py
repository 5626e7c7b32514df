"""Which way to tune glibc's allocator: not at all, mallopt in the process, or MALLOC_* before it starts.

Each figure is a fresh process that trains `cnn` on real MNIST under one plan; the three take turns.
"""

import os
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from training.plan import Plan
from training.prepare import prepare
from training.setting import environment_for
from training.spec import DEFAULTS
from worker.settings import load

ROUNDS: Final = 3
STEPS: Final = 60
WARM_UP: Final = 5
VARIABLES: Final = {
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": str(2**31 - 1),
}
WAYS: Final = ("glibc default", "mallopt in the process", "MALLOC_* variables", "tcmalloc")


def measure(store: Path) -> None:
    """Be one process: print samples per second for each kind of plan."""
    from calibration.measure import Contender
    from training.step import prepare_process
    from training.store import open_store

    tuned = sys.argv[2] == WAYS[1]
    plan = Plan(threads=len(os.sched_getaffinity(0)), micro_batch=128, allocator="tuned" if tuned else "default")
    prepare_process(plan)
    for some_plan, batch in (
        (plan, 128),
        (replace(plan, micro_batch=512), 512),
        (replace(plan, precision="bfloat16", memory_format="channels_last"), 128),
    ):
        contender = Contender(replace(DEFAULTS, batch_size=batch), some_plan, open_store(store))
        contender.run(WARM_UP)
        seconds = statistics.median(contender.run(STEPS))
        print(batch / seconds)


def main() -> None:
    """Run the processes in turns and print a table."""
    settings = load()
    store = prepare("mnist", settings.data_dir, settings.cache_dir).path
    figures: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    tcmalloc = environment_for(Plan(threads=1, micro_batch=1, allocator="tcmalloc"), {})
    if not tcmalloc:
        figures.pop(WAYS[3])
    variables = {WAYS[2]: VARIABLES, WAYS[3]: tcmalloc}
    for _ in range(ROUNDS):
        for way in figures:
            environment = {**os.environ, **variables.get(way, {})}
            command = [sys.executable, "-m", "bench.allocator", str(store), way]
            output = subprocess.check_output(command, env=environment, text=True)
            figures[way].append([float(line) for line in output.split()])
    print("| cnn, samples/s | float32, batch 128 | float32, batch 512 | bfloat16 channels_last, batch 128 |")
    print("|---|---|---|---|")
    for way, runs in figures.items():
        columns = zip(*runs, strict=True)
        cells = [f"{statistics.median(each):,.0f} ({min(each):,.0f}-{max(each):,.0f})" for each in columns]
        print(f"| {way} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(Path(sys.argv[1]))
    else:
        main()
