"""When to compare the gradients of bfloat16 with those of float32: their cosine after 0, 2, 4, 8 and 16 steps.

One table a data set that is present, five seeds each, `cnn` at batch 128 and at batch 32.
"""

import os
from dataclasses import replace
from typing import Final

from calibration.measure.benchmark import Contender, gradient_cosine
from training.config.plan import Plan
from training.config.spec import TrainSpec
from training.data.dataset_store import Store, open_store
from training.data.prepare import prepare
from training.errors import DatasetError
from worker.config.settings import load

STEPS: Final = (0, 2, 4, 8, 16)
SEEDS: Final = range(5)


def row(store: Store, batch: int) -> str:
    """Return a line of the table: the least cosine over the seeds after each number of steps."""
    plan = Plan(threads=len(os.sched_getaffinity(0)), micro_batch=batch, memory_format="channels_last")
    least = [1.0] * len(STEPS)
    for seed in SEEDS:
        spec = TrainSpec(dataset=store.info.name, model="cnn", batch_size=batch, seed=seed)
        contender = Contender(spec, plan, store)
        for index, steps in enumerate(STEPS):
            cosine = gradient_cosine(contender, replace(plan, precision="bfloat16"), store, steps)
            least[index] = min(least[index], cosine)
    return f"| {store.info.name}, batch {batch} | {' | '.join(f'{cosine:.4f}' for cosine in least)} |"


def main() -> None:
    """Measure and print."""
    settings = load()
    print(f"| least cosine of {len(SEEDS)} seeds after | {' | '.join(f'{steps} steps' for steps in STEPS)} |")
    print("|---" * (len(STEPS) + 1) + "|")
    for name in ("mnist", "digits"):
        try:
            store = open_store(prepare(name, settings.data_dir, settings.cache_dir, download=False).path)
        except DatasetError as error:
            print(f"{name}: {error}")
            continue
        for batch in (128, 32):
            print(row(store, batch))


if __name__ == "__main__":
    main()
