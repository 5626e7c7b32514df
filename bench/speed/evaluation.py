"""Evaluation batches: speed and memory of an evaluation, by the samples of a forward pass.

    python -m bench.speed evaluation

All sizes take turns in one process of each plan for their speed; for its memory each has a process of its own.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from bench.calibration.common import mnist
from bench.record import samples, start
from bench.speed.common import BenchOptions, as_json, ask, fast_plan, own_plan
from preflight.container.resources import status_sizes
from preflight.contract.plan import Plan
from preflight.contract.spec import DEFAULTS, TrainSpec

SIZES: Final = (64, 128, 256, 512, 1024)
SAMPLES: Final = 1024
ROUNDS: Final = 5
BLOCK_SECONDS: Final = 0.3
MODELS: Final = ("cnn", "cnn-valid", "resnet18")


def main(asked: BenchOptions) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    record = start("evaluation", "python -m bench.speed evaluation", "reading the samples")
    record.head("model", "plan", "", *(f"batches of {size:,}" for size in SIZES))
    for model in MODELS:
        spec = replace(DEFAULTS, model=model)
        for plan in (own_plan(spec), fast_plan(spec)):
            what = f"{plan.precision}, {plan.memory_format}"
            found = _ask(spec, plan, SIZES, ROUNDS)
            rates = [[found[f"{size}/{number}"] for number in range(ROUNDS)] for size in SIZES]
            record.row(model, what, "samples/s", *(samples(each, ",.0f") for each in rates))
            record.row(model, what, "MiB", *(samples([_ask(spec, plan, (size,), 1)["mib"]], ",.0f") for size in SIZES))
    record.write()


def _ask(spec: TrainSpec, plan: Plan, sizes: Sequence[int], rounds: int) -> dict[str, float]:
    """Return what a process measures that evaluates in batches of these sizes."""
    more: dict[str, JsonValue] = {"store": str(mnist().path), "sizes": [*sizes], "rounds": rounds}
    return ask("bench.speed.evaluation", {**as_json(spec, plan), **more}, plan)


def measure() -> None:
    """Be the process: print samples per second of every size in every round, and the MiB that evaluating added."""
    from bench.speed.common import PLAN, SPEC, from_json
    from training.data.dataset_store import open_dataset
    from training.loop.evaluate import evaluate
    from training.step.train_step import TrainStep, prepare_process

    asked = json.loads(sys.argv[1])
    spec, plan = from_json(asked["spec"], SPEC), from_json(asked["plan"], PLAN)
    prepare_process(plan)
    store = open_dataset(Path(asked["store"]))
    info = store.info
    images, labels = store.test_images[:SAMPLES], store.test_labels[:SAMPLES]
    sizes = asked["sizes"]
    steps = {size: TrainStep(spec, replace(plan, eval_batch=size), info.shape, info.classes) for size in sizes}
    before = _peak_mib()
    found: dict[str, float] = {}
    for number in range(-1, asked["rounds"]):  # the first round warms up
        for size in sizes if number % 2 else reversed(sizes):
            times, began = 0, time.perf_counter()
            while time.perf_counter() - began < BLOCK_SECONDS:
                evaluate(steps[size], images, labels, info.mean, info.std)
                times += 1
            found[f"{size}/{number}"] = times * SAMPLES / (time.perf_counter() - began)
    print(json.dumps({**found, "mib": _peak_mib() - before}))


def _peak_mib() -> float:
    """Return the most memory that this process ever had, in MiB; `getrusage` would count that of its parent."""
    return status_sizes()["VmHWM"] / (1 << 20)


if __name__ == "__main__":
    measure()
