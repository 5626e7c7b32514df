"""Each option of a training step by itself, against the step as it is made here.

    python -m bench.speed options

All variants of `cnn` on MNIST (batch 128, bfloat16, channels_last, tuned allocator) take turns in one process; the
ratio is the variant's speed against that of the plain step of the same round. What is on by default, or left to
calibration, is decided by this table.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.calibration.common import mnist
from bench.speed.common import Asked, as_json, ask, quick_plan
from bench.tables import head, row, spread
from training.config.plan import Plan
from training.config.spec import DEFAULTS

ROUNDS: Final = 7
BLOCK_SECONDS: Final = 1.5
WARM_UP: Final = 10
PLAIN: Final = "the step as it is"
DECIDED: Final = {
    PLAIN: "",
    "float32": "calibration",
    "contiguous": "calibration",
    "micro-batches of 32": "calibration, where memory asks for it",
    "batch 512": "the job's",
    "compiled": "calibration, where the training is long enough",
    "1 loader worker": "calibration",
    "2 loader workers": "calibration",
    "next batch fetched by a thread": "off",
    "gradients clipped at 1": "the job's",
    "gradients set to zero, not to none": "off",
    "pixels cached as normalised float32": "off",
    "loss read after every step": "off: with each report",
    "denormals flushed": "off",
    "pools limited by threadpoolctl": "off",
}
"""Variant -> what is done about it."""


def main(asked: Asked) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    spec = DEFAULTS
    plan = quick_plan(spec)
    found = ask("bench.speed.options", {**as_json(spec, plan), "store": str(mnist().path)}, plan)
    head("variant", "samples/s", "against the plain step", "here")
    for name, decided in DECIDED.items():
        if f"{name}/0" not in found:
            row(name, "not here", "", decided)
            continue
        speeds = [found[f"{name}/{number}"] for number in range(ROUNDS)]
        ratios = [speed / found[f"{PLAIN}/{number}"] for number, speed in enumerate(speeds)]
        row(name, spread(speeds, ",.0f"), spread(ratios, ".3f"), decided)


def measure() -> None:
    """Be the process: print samples per second of every variant in every round."""
    import shutil
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import nullcontext

    import torch
    from torch import Tensor

    from bench.speed.common import PLAN, SPEC, from_json
    from calibration.measure.benchmark import Contender
    from training.data.batches import normalise
    from training.data.counter_rng import shuffle
    from training.data.dataset_store import open_store
    from training.loop.train_step import prepare_process

    asked = json.loads(sys.argv[1])
    spec, plan = from_json(asked["spec"], SPEC), from_json(asked["plan"], PLAN)
    prepare_process(plan)
    store = open_store(Path(asked["store"]))

    class Zeroing(Contender):
        """Keeps the memory of its gradients."""

        def __init__(self) -> None:
            super().__init__(spec, plan, store)
            keeps = self.step.optimizer.zero_grad
            vars(self.step.optimizer)["zero_grad"] = lambda set_to_none: keeps(set_to_none=not set_to_none)

    class Cached(Contender):
        """Gathers from pixels that were normalised once."""

        def __init__(self) -> None:
            super().__init__(spec, plan, store)
            info = store.info
            pixels = normalise(store.train_images, info.mean, info.std, "channels_last")

            def forever() -> Iterator[tuple[Tensor, Tensor]]:
                for epoch in itertools.count():
                    for samples in torch.split(shuffle(0, epoch, len(pixels)), spec.batch_size)[:-1]:
                        images = pixels[samples].contiguous(memory_format=torch.channels_last)
                        yield images, store.train_labels[samples].long()

            self._source = forever()

    class Ahead(Contender):
        """Has a thread fetch the next batch while a step computes."""

        def __init__(self) -> None:
            super().__init__(spec, plan, store)
            inner = self._source

            def forever() -> Iterator[tuple[Tensor, Tensor]]:
                with ThreadPoolExecutor(max_workers=1) as thread:
                    coming = thread.submit(next, inner)
                    while True:
                        here, coming = coming.result(), thread.submit(next, inner)
                        yield here

            self._source = forever()

    class Reading(Contender):
        """Reads the loss after every step."""

        def run(self, steps: int) -> list[float]:
            for _ in range(steps):
                float(self.step.run(*self.next_batch(), self.spec.learning_rate))
            return []

    def flushed(contender: Contender) -> Callable[[int], object]:
        def run(steps: int) -> None:
            torch.set_flush_denormal(True)
            contender.run(steps)
            torch.set_flush_denormal(False)

        return run

    def limited(contender: Contender) -> Callable[[int], object] | None:
        try:
            from threadpoolctl import threadpool_limits
        except ImportError:
            return None

        def run(steps: int) -> None:
            with threadpool_limits(plan.threads) if steps else nullcontext():
                contender.run(steps)

        return run

    def under(changed: Plan) -> Callable[[int], object]:
        return Contender(spec, changed, store).run

    larger = replace(spec, batch_size=512)
    work: dict[str, tuple[int, Callable[[int], object] | None]] = {
        PLAIN: (128, Contender(spec, plan, store).run),
        "float32": (128, under(replace(plan, precision="float32"))),
        "contiguous": (128, under(replace(plan, memory_format="contiguous"))),
        "micro-batches of 32": (128, under(replace(plan, micro_batch=32))),
        "batch 512": (512, Contender(larger, replace(plan, micro_batch=512), store).run),
        "compiled": (128, under(replace(plan, compile=True)) if shutil.which("g++") else None),
        "1 loader worker": (128, under(replace(plan, loader_workers=1))),
        "2 loader workers": (128, under(replace(plan, loader_workers=2))),
        "next batch fetched by a thread": (128, Ahead().run),
        "gradients clipped at 1": (128, Contender(replace(spec, gradient_clip=1.0), plan, store).run),
        "gradients set to zero, not to none": (128, Zeroing().run),
        "pixels cached as normalised float32": (128, Cached().run),
        "loss read after every step": (128, Reading(spec, plan, store).run),
        "denormals flushed": (128, flushed(Contender(spec, plan, store))),
        "pools limited by threadpoolctl": (128, limited(Contender(spec, plan, store))),
    }
    steps: dict[str, int] = {}
    found: dict[str, float] = {}
    for name, (_, run) in work.items():
        if run is not None:
            run(WARM_UP)
            began = time.perf_counter()
            run(WARM_UP)
            steps[name] = max(1, round(BLOCK_SECONDS * WARM_UP / (time.perf_counter() - began)))
    for number in range(ROUNDS):
        for name in list(steps) if number % 2 else reversed(list(steps)):
            batch, run = work[name]
            if run is None:
                continue
            began = time.perf_counter()
            run(steps[name])
            found[f"{name}/{number}"] = steps[name] * batch / (time.perf_counter() - began)
    print(json.dumps(found))


if __name__ == "__main__":
    measure()
