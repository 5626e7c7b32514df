"""The recipes on samples that choose: 50,000 of MNIST's training samples, scored on the other 10,000.

`python -m bench.recipes [NAME ...] [--seeds N] [--set FIELD=VALUE ...]`: the test set stays untouched while a recipe is
changed. One thread each, as many trainings at a time as there are processors. Earlier candidates: docs/decisions.md.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bench.calibration.common import mnist
from bench.record import samples, start
from bench.speed.common import SPEC, fast_plan
from preflight.contract.plan import Plan
from preflight.contract.recipes import RECIPES
from preflight.contract.spec import DEFAULTS, TrainSpec
from training.data.batches import Batches
from training.data.dataset_store import open_dataset
from training.data.split import split
from training.loop.evaluate import evaluate
from training.step.train_step import TrainStep, prepare_process

HELD_OUT: Final = 10_000


def train(spec: TrainSpec) -> tuple[float, float, int]:
    """Return accuracy on the held-out samples, seconds of steps and evaluation, and number of parameters."""
    store = open_dataset(mnist().path)
    spec, plan = replace(spec, validation_samples=HELD_OUT), one_thread(spec)
    began = time.perf_counter()
    step = TrainStep(spec, plan, store.info.shape, store.info.classes)
    batches = Batches(store, spec, plan)
    steps = split(spec, store.info).steps
    for epoch in range(spec.epochs):
        for number, (images, labels) in enumerate(batches.of(epoch)):
            step.run(images, labels, step.rate(epoch * steps + number, spec.epochs * steps, steps))
    images, labels = store.train_images[-HELD_OUT:], store.train_labels[-HELD_OUT:]
    score = evaluate(step, images, labels, store.info.mean, store.info.std)
    return score.accuracy, time.perf_counter() - began, sum(each.numel() for each in step.parameters)


def one_thread(spec: TrainSpec) -> Plan:
    """Return a plan that leaves the other processors to other trainings."""
    return replace(fast_plan(spec), threads=1)


def changed(spec: TrainSpec, settings: Sequence[str]) -> TrainSpec:
    """Return `spec` with `FIELD=VALUE` applied."""
    fields = dict(setting.split("=", 1) for setting in settings)
    return SPEC.validate_python({**SPEC.dump_python(spec), **fields}, strict=False)


def main() -> None:
    """Train every recipe with every seed, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.recipes", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(RECIPES)}; all by default")
    parser.add_argument("--seeds", type=int, default=3, metavar="N")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="of the recipe's spec")
    asked = parser.parse_args()
    chosen = {
        name: changed(spec, asked.set) for name, spec in RECIPES.items() if not asked.names or name in asked.names
    }
    mnist()  # prepared once, before the processes look for it
    context = multiprocessing.get_context("spawn")
    with context.Pool(len(os.sched_getaffinity(0)), prepare_process, (one_thread(DEFAULTS),)) as pool:
        specs = [replace(spec, seed=seed) for spec in chosen.values() for seed in range(asked.seeds)]
        runs = pool.map(train, specs, chunksize=1)
    record = start("recipes", "python -m bench.recipes", "process starts and imports", range(asked.seeds))
    record.head("recipe", "parameters", f"recognized of {HELD_OUT:,} held out", "mean", "seconds on one thread")
    for number, name in enumerate(chosen):
        accuracies, seconds, parameters = zip(*runs[number * asked.seeds : (number + 1) * asked.seeds], strict=True)
        record.row(name, f"{parameters[0]:,}", samples(accuracies, ".2%"), f"{statistics.mean(accuracies):.3%}",
                   samples(seconds, ".2f"))  # fmt: skip
    record.write()


if __name__ == "__main__":
    main()
