"""What the models' last convolution costs in a training step: as a matrix product, beside the library's convolution.

    python -m bench.last

One process trains every model both ways, on all processors, in turns.
"""

import time
from collections.abc import Callable
from itertools import islice
from statistics import median
from typing import Final

from torch import nn

from bench.calibration.common import mnist
from bench.speed.common import quick_plan
from bench.tables import head, row, spread
from training.config.recipes import RECIPES
from training.config.spec import DEFAULTS, TrainSpec
from training.data.batches import Batches
from training.data.dataset_store import Store, open_store
from training.loop.train_step import Make, TrainStep, prepare_process
from training.models.cnn import LastConvolution, build

ROUNDS: Final = 9
STEPS: Final = 25
"""In each round; the median of their times counts."""


def by_the_library(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a registered model with an ordinary convolution in the place of its last one."""
    model = build(name, shape, classes)
    for where, module in list(model.named_modules()):
        if isinstance(module, LastConvolution):
            plain = nn.Conv2d(module.in_channels, module.out_channels, module.weight.shape[-1], bias=False)
            model.set_submodule(where, plain)
    return model


def steps(spec: TrainSpec, store: Store, make: Make) -> Callable[[], float]:
    """Return what trains on the same batches again and again, fetched before, and returns the median ms of a step."""
    plan = quick_plan(spec)
    step = TrainStep(spec, plan, store.info.shape, store.info.classes, make)
    batches = list(islice(Batches(store, spec, plan).of(0), STEPS))

    def run() -> float:
        found = []
        for images, labels in batches:
            began = time.perf_counter()
            step.run(images, labels, spec.learning_rate)
            found.append(1000 * (time.perf_counter() - began))
        return median(found)

    return run


def main() -> None:
    """Measure and print."""
    store = open_store(mnist().path)
    prepare_process(quick_plan(DEFAULTS))
    head("model, batch", "the library's, ms a step", "a matrix product, ms a step", "times as fast, round by round")
    for spec in (*RECIPES.values(), DEFAULTS):
        theirs, ours = (steps(spec, store, make) for make in (by_the_library, build))
        rounds = [(theirs(), ours()) for _ in range(1 + ROUNDS)][1:]  # the first warms up
        library, product = zip(*rounds, strict=True)
        ratios = [slow / quick for slow, quick in rounds]
        row(f"`{spec.model}`, {spec.batch_size}", *(spread(each, ".2f") for each in (library, product, ratios)))


if __name__ == "__main__":
    main()
