"""What calibration gains over what a user writes down at first.

    python -m bench.calibration naive

The user's own plan is float32, contiguous, glibc's default allocator, batch 512 and two loader workers.
Calibration begins with it; then it and the chosen plan are measured in turns (A B, B A, ...), each in its own setting.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

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
from calibration.cache.signature import has_bfloat16
from calibration.measure.backend import Backend
from calibration.measure.process_pool import ProcessPool
from calibration.statistics import compare
from calibration.task import CalibrationContext
from training.config.plan import Plan
from training.config.spec import DEFAULTS

BATCH: Final = 512
LOADER_WORKERS: Final = 2
PREFETCH: Final = 2
PAIRS: Final = {"cnn": 10, "resnet18": 5}
BLOCK_SECONDS: Final = 1.0
"""Of a plan in a pair; one step where that takes longer."""
BOUND: Final = 2.0


def main(asked: BenchOptions) -> bool:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    record = start("calibration-naive", "python -m bench.calibration naive", "process starts and imports")
    if not has_bfloat16():
        print("**this processor has no instructions for bfloat16, for which the bound is meant**\n")
    record.head("model", "chosen plan", "naive, samples/s", "chosen, samples/s", "gain, 95 % interval", "bound", "")
    for model in MODELS:
        with calibration_context() as context:
            examine(model, context, record)
    record.write()
    return True


def examine(model: str, context: CalibrationContext, record: Record) -> None:
    """Choose a plan for a model, measure both, and print a row."""
    spec = replace(DEFAULTS, model=model, batch_size=BATCH)
    naive = Plan(
        threads=context.resources.cores, micro_batch=BATCH, loader_workers=LOADER_WORKERS, prefetch_factor=PREFETCH
    )
    chosen = choose(spec, naive, context).plan
    with ProcessPool(spec, context.store.path, context.directory, context.environment, do_nothing) as pool:
        pairs = race(pool, naive, chosen, PAIRS[model])
    gain = compare(pairs)
    speeds = [[BATCH / step_s for pair in pairs for step_s in pair[side]] for side in (0, 1)]
    micro = "" if chosen.micro_batch == BATCH else f", micro-batch {chosen.micro_batch}"
    loader = f", {chosen.loader_workers} loader worker(s)"
    record.row(model, format_plan(chosen) + micro + loader, samples(speeds[0], ",.0f"), samples(speeds[1], ",.0f"),
        interval(gain), f"{BOUND:g}x", judged(gain.ratio >= BOUND))  # fmt: skip


def race(pool: Backend, naive: Plan, chosen: Plan, pairs: int) -> list[tuple[Sequence[float], Sequence[float]]]:
    """Measure both plans in turns, warmed up."""
    steps = {
        plan: math.ceil(BLOCK_SECONDS / pool.measure(plan, 1, settle=0, warm_up=2).seconds[0])
        for plan in (naive, chosen)
    }
    taken: list[tuple[Sequence[float], Sequence[float]]] = []
    for number in range(pairs):
        order = (chosen, naive) if number % 2 else (naive, chosen)
        blocks = {plan: pool.measure(plan, steps[plan], settle=0, warm_up=0).seconds for plan in order}
        taken.append((blocks[naive], blocks[chosen]))
    return taken
