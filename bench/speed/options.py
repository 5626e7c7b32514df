"""Each option of a training step by itself, against the step as it is made here.

    python -m bench.speed options

All variants of `cnn` on MNIST (batch 128, bfloat16, channels_last) take turns in one process; the
ratio is the variant's speed against that of the plain step of the same round. What is on by default, or left to
calibration, is decided by this table.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.calibration.common import mnist
from bench.record import samples, start
from bench.speed.common import BenchOptions, as_json, ask, fast_plan
from preflight.contract.plan import Plan
from preflight.contract.spec import DEFAULTS

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
    "gradients clipped at 1": "the job's",
}
"""Variant -> what is done about it."""


def main(asked: BenchOptions) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    record = start("options", "python -m bench.speed options", "validation")
    spec = DEFAULTS
    plan = fast_plan(spec)
    found = ask("bench.speed.options", {**as_json(spec, plan), "store": str(mnist().path)}, plan)
    record.head("variant", "samples/s", "against the plain step", "here")
    for name, decided in DECIDED.items():
        if f"{name}/0" not in found:
            record.row(name, "not here", "", decided)
            continue
        speeds = [found[f"{name}/{number}"] for number in range(ROUNDS)]
        ratios = [speed / found[f"{PLAIN}/{number}"] for number, speed in enumerate(speeds)]
        record.row(name, samples(speeds, ",.0f"), samples(ratios, ".3f"), decided)
    record.write()


def measure() -> None:
    """Be the process: print samples per second of every variant in every round."""
    import shutil

    from bench.speed.common import PLAN, SPEC, from_json
    from calibration.measure.candidate import Candidate
    from training.data.dataset_store import open_dataset
    from training.step.train_step import prepare_process

    asked = json.loads(sys.argv[1])
    spec, plan = from_json(asked["spec"], SPEC), from_json(asked["plan"], PLAN)
    prepare_process(plan)
    store = open_dataset(Path(asked["store"]))

    def under(changed: Plan) -> Callable[[int], object]:
        return Candidate(spec, changed, store).run

    larger = replace(spec, batch_size=512)
    work: dict[str, tuple[int, Callable[[int], object] | None]] = {
        PLAIN: (128, Candidate(spec, plan, store).run),
        "float32": (128, under(replace(plan, precision="float32"))),
        "contiguous": (128, under(replace(plan, memory_format="contiguous"))),
        "micro-batches of 32": (128, under(replace(plan, micro_batch=32))),
        "batch 512": (512, Candidate(larger, replace(plan, micro_batch=512), store).run),
        "compiled": (128, under(replace(plan, compile=True)) if shutil.which("g++") else None),
        "1 loader worker": (128, under(replace(plan, loader_workers=1))),
        "2 loader workers": (128, under(replace(plan, loader_workers=2))),
        "gradients clipped at 1": (128, Candidate(replace(spec, gradient_clip=1.0), plan, store).run),
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
