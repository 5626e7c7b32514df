"""Whether the gauge becomes slower when training does: both in turns, for as long as is asked.

    python -m bench.gauge [SECONDS]

Steps of `cnn` for half a second, then the gauge, and so on. Prints a Markdown table for single looks and for medians of
several: the correlation of the logarithms, how much of a slowdown of the steps the gauge shows (slope), and the ranges.
On a machine that is quiet throughout there is nothing to correlate: look at the ranges first.
"""

import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from torch import Tensor

from training.config.plan import Plan
from training.config.spec import DEFAULTS
from training.data.batches import Batches
from training.data.dataset_store import open_store
from training.data.prepare import prepare
from training.loop.train_step import TrainStep, prepare_process
from training.system.reference_workload import gauge
from worker.config.settings import load

SECONDS: Final = 120.0
BLOCK_SECONDS: Final = 0.5
TOGETHER: Final = (1, 4, 10)
"""Looks whose median is taken."""
LEAST: Final = 4
"""Fewer points than these have no correlation worth printing."""


def main() -> None:
    """Measure and print."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    settings = load()
    store = open_store(prepare("mnist", settings.data_dir, settings.cache_dir).path)
    plan = Plan(
        threads=2, micro_batch=DEFAULTS.batch_size, precision="bfloat16", memory_format="channels_last",
        allocator="tuned",
    )  # fmt: skip
    spec = replace(DEFAULTS, model="cnn")
    prepare_process(plan)
    step = TrainStep(spec, plan, store.info.shape, store.info.classes)
    source = forever(Batches(store, spec, plan))
    block(step, source)
    steps, gauges = [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        steps.append(block(step, source))
        gauges.append(gauge(plan.threads))
    show(steps, gauges)


def forever(batches: Batches) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of one epoch after the other."""
    epoch = 0
    while True:
        yield from batches.of(epoch)
        epoch += 1


def block(step: TrainStep, source: Iterator[tuple[Tensor, Tensor]]) -> float:
    """Train for `BLOCK_SECONDS`; return the mean seconds of a step."""
    began, done = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - began) < BLOCK_SECONDS or not done:
        step.run(*next(source), step.spec.learning_rate)
        done += 1
    return elapsed / done


def show(steps: Sequence[float], gauges: Sequence[float]) -> None:
    """Print the table."""
    print("| median of | looks | correlation | slope | ms a step | ms of the gauge |")
    print("|---|---|---|---|---|---|")
    for together in TOGETHER:
        x, y = ([math.log(value) for value in medians(values, together)] for values in (steps, gauges))
        if len(x) < LEAST:
            continue
        slope = statistics.linear_regression(x, y).slope
        ranges = (f"{1e3 * math.exp(min(logs)):.1f} to {1e3 * math.exp(max(logs)):.1f}" for logs in (x, y))
        print(f"| {together} | {len(x)} | {statistics.correlation(x, y):.2f} | {slope:.2f} | {' | '.join(ranges)} |")


def medians(values: Sequence[float], together: int) -> list[float]:
    """Return the medians of so many values after each other."""
    whole = len(values) // together * together
    return [statistics.median(values[start : start + together]) for start in range(0, whole, together)]


if __name__ == "__main__":
    main()
