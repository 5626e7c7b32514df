"""Whether the chosen plan is the best there is: against every plan of a grid, measured in the same minutes.

    python -m bench.calibration grid

The grid is allocator x precision x memory format x threads, around the plan that was just chosen, which is one of its
rows. Each plan is measured in blocks, plan after plan, round after round, each round in the opposite order of the one
before. After the first round only plans near its best are measured again; a plan that is far slower on 32 samples
is not measured on whole batches. The best row of many was also lucky, so that the ratio errs against the choice.
"""

import itertools
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, get_args

from bench.calibration.common import (
    MODELS,
    BenchOptions,
    calibration_context,
    choose,
    do_nothing,
    format_plan,
    interval,
)
from bench.record import Record, judged, samples, start
from calibration.measure.backend import Backend, PlanFailed, WorkerLost
from calibration.measure.process_pool import ProcessPool
from calibration.search.search_space import thread_counts
from calibration.statistics import compare
from calibration.task import CalibrationContext
from training.config.plan import Allocator, MemoryFormat, Plan, Precision
from training.config.spec import DEFAULTS
from training.process.launch import find_tcmalloc
from training.system.resources import Resources

ROUNDS: Final = {"cnn": 12, "resnet18": 6}
BLOCK_SECONDS: Final = 0.3
"""Of a plan in a round; one step where that takes longer."""
LOOK: Final = 32
"""Samples of the first step of a plan of which nothing is known."""
HOPELESS: Final = 6.0
"""How much slower than the best so far such a step may be, sample by sample, to be followed by whole ones: far more
than what a small batch costs. Without instructions for bfloat16 a plan takes minutes for a whole one."""
GOES_ON: Final = 1.25
"""How much slower than the best of the first round a plan may be to be measured again."""
BOUND: Final = 0.95


@dataclass(slots=True)
class Row:
    """A plan of the grid, and the seconds of its steps in each round."""

    plan: Plan
    blocks: list[Sequence[float]] = field(default_factory=list)
    failure: str = ""

    @property
    def step_s(self) -> float:
        """The median over the rounds of their median steps."""
        return statistics.median(self.medians) if self.blocks else math.inf

    @property
    def medians(self) -> list[float]:
        """Of each round."""
        return [statistics.median(block) for block in self.blocks]

    @property
    def noise(self) -> float:
        """How far the rounds are apart, against their median."""
        return (max(self.medians) - min(self.medians)) / self.step_s


def main(asked: BenchOptions) -> bool:  # noqa: ARG001 - every part is called alike
    """Measure and print, model by model."""
    record = start("calibration-grid", "python -m bench.calibration grid", "process starts and imports")
    for model in MODELS:
        with calibration_context() as context:
            examine(model, context, record)
    record.write()
    return True


def examine(model: str, context: CalibrationContext, record: Record) -> None:
    """Choose a plan, measure the grid, and print how far the choice is from its best."""
    spec = replace(DEFAULTS, model=model)
    chosen = choose(spec, Plan(threads=context.resources.cores, micro_batch=spec.batch_size), context).plan
    rows = [Row(plan) for plan in grid(chosen, context.resources)]
    mine = next(one for one in rows if one.plan == chosen)
    with ProcessPool(spec, context.store.path, context.directory, context.environment, do_nothing) as pool:
        measure(pool, rows, mine, spec.batch_size, ROUNDS[model])
    show(model, spec.batch_size, rows, mine, record)


def grid(chosen: Plan, resources: Resources) -> list[Plan]:
    """Return every combination, those of one allocator together: they share a process."""
    allocators: list[Allocator] = ["default", "tuned"]
    if find_tcmalloc():
        allocators.append("tcmalloc")
    precisions: tuple[Precision, ...] = get_args(Precision)
    formats: tuple[MemoryFormat, ...] = get_args(MemoryFormat)
    threads = dict.fromkeys((*thread_counts(resources), chosen.threads))
    return [
        replace(chosen, allocator=allocator, precision=precision, memory_format=memory_format, threads=count)
        for allocator, precision, memory_format, count in itertools.product(allocators, precisions, formats, threads)
    ]


def measure(pool: Backend, rows: Sequence[Row], mine: Row, batch_size: int, rounds: int) -> None:
    """Measure round after round; the chosen plan and all that are near the best see every one of them."""
    going = list(rows)
    for number in range(rounds):
        for one in reversed(going) if number % 2 else going:
            try:
                one.blocks.append(block(pool, one, batch_size, min(other.step_s for other in rows)))
            except (WorkerLost, PlanFailed) as error:
                one.failure = str(error)
        best = min(one.step_s for one in rows)
        going = [one for one in going if one is mine or (not one.failure and one.step_s <= GOES_ON * best)]


def block(pool: Backend, one: Row, batch_size: int, best_s: float) -> Sequence[float]:
    """Measure a plan for a while; what was measured in between has filled the caches and taken its place in memory."""
    step_s = one.step_s
    if not one.blocks:  # nothing is known of its speed
        samples = min(LOOK, batch_size)
        look = pool.measure(one.plan, 1, settle=0, warm_up=1, samples=samples).times(batch_size / samples).seconds
        if look[0] >= HOPELESS * best_s:
            return look
        first = pool.measure(one.plan, 1, settle=0, warm_up=1).seconds
        if first[0] >= BLOCK_SECONDS:
            return first
        step_s = first[0]
    steps = math.ceil(BLOCK_SECONDS / step_s)
    return pool.measure(one.plan, steps, settle=min(steps - 1, 1), warm_up=min(steps, 3)).seconds


def show(model: str, batch_size: int, rows: Sequence[Row], mine: Row, record: Record) -> None:
    """Print the grid, and the chosen plan against its best."""
    measured = sorted((one for one in rows if one.blocks), key=lambda one: one.step_s)
    record.head(f"{model}: allocator, precision, memory format, threads", "samples/s, median (range)", "rounds", "")
    for one in measured:
        speeds = [batch_size / step_s for step_s in one.medians]
        record.row(
            format_plan(one.plan), samples(speeds, ",.0f"), str(len(one.blocks)), "chosen" if one is mine else ""
        )
    for one in rows:
        if one.failure:
            print(f"{format_plan(one.plan)}: {one.failure}", file=sys.stderr)
    if not mine.blocks:
        print(f"\n{model}: the chosen plan could not be measured: {mine.failure}\n")
        return
    full = [one for one in measured if len(one.blocks) == len(mine.blocks)]
    best = full[0]
    against = compare(list(zip(best.blocks, mine.blocks, strict=True)))
    record.head(f"{model}", "figure", "bound", "")
    record.row("chosen against the best of the grid, 95 % interval", interval(against), f"{BOUND:.2f}",
        judged(against.ratio >= BOUND))  # fmt: skip
    if best is mine and len(full) > 1:
        runner_up = compare(list(zip(full[1].blocks, mine.blocks, strict=True)))
        record.row("chosen against the second best", interval(runner_up), "", "")
    record.row("noise: range of one plan over the rounds", samples([one.noise for one in full], ".1%"), "", "")
