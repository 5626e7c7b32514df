"""How near training comes to what the machine can compute.

    python -m bench.speed roof

In one process, in turns: 3x3 convolutions of ResNet-18's shapes, forward; matrix products; and training steps of the
models, whose operations torch's FlopCounterMode counts. The roof is the quickest of the convolutions in bfloat16.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.calibration.common import mnist
from bench.speed.common import Asked, as_json, ask, quick_plan
from bench.tables import head, judged, row, spread
from training.spec import DEFAULTS

SHAPES: Final = ((64, 28), (128, 14), (256, 7), (512, 4))
"""Channels and side of the images of ResNet-18's four stages."""
BATCH: Final = 128
MATRIX: Final = 2048
MODELS: Final = ("resnet18", "cnn")
BLOCK_SECONDS: Final = 1.0
ROUNDS: Final = 7
BOUND: Final = 0.75


def main(asked: Asked) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    spec = replace(DEFAULTS, batch_size=BATCH)
    plan = quick_plan(spec)
    found = ask("bench.speed.roof", {**as_json(spec, plan), "store": str(mnist().path)}, plan)
    names = sorted({name.rpartition("/")[0] for name in found})
    series = {name: [found[f"{name}/{number}"] for number in range(ROUNDS)] for name in names}
    convolutions = [name for name in names if name.startswith("convolution")]
    roof = max(convolutions, key=lambda name: statistics.median(series[name]))
    head("in bfloat16", "GFLOP/s", f"of the roof ({roof}), round by round", "bound", "")
    for name in names:
        shares = [value / top for value, top in zip(series[name], series[roof], strict=True)]
        bound = (
            (f"{BOUND:.0%}", judged(statistics.median(shares) >= BOUND)) if name == "training resnet18" else ("", "")
        )
        row(name, spread(series[name], ",.0f"), spread(shares, ".0%"), *bound)


def measure() -> None:
    """Be the process: print the GFLOP/s of everything in every round."""
    import torch
    from torch.nn import functional as F
    from torch.utils.flop_counter import FlopCounterMode

    from bench.speed.common import PLAN, SPEC, from_json
    from calibration.measure import Contender
    from training.step import prepare_process
    from training.store import open_store

    asked = json.loads(sys.argv[1])
    spec, plan = from_json(asked["spec"], SPEC), from_json(asked["plan"], PLAN)
    prepare_process(plan)
    work: dict[str, tuple[float, Callable[[], object]]] = {}
    for channels, side in SHAPES:
        layout = torch.channels_last
        images = torch.randn(BATCH, channels, side, side).bfloat16().to(memory_format=layout)
        weight = torch.randn(channels, channels, 3, 3).bfloat16().to(memory_format=layout)
        operations = 2 * BATCH * side**2 * channels**2 * 9
        name = f"convolution, {channels} channels at {side}x{side}"
        work[name] = operations, partial(F.conv2d, images, weight, padding=1)
    left, right = (torch.randn(MATRIX, MATRIX).bfloat16() for _ in range(2))
    work[f"matrix product, {MATRIX}"] = 2 * MATRIX**3, partial(torch.mm, left, right)
    store = open_store(Path(asked["store"]))
    for model in MODELS:
        contender = Contender(replace(spec, model=model), plan, store)
        with FlopCounterMode(display=False) as counter:
            contender.step.gradients(*contender.next_batch())
        work[f"training {model}"] = counter.get_total_flops(), partial(contender.run, 1)
    found: dict[str, float] = {}
    for number in range(-1, ROUNDS):  # the first warms up
        for name, (each, do) in work.items():
            done, began = 0, time.perf_counter()
            with torch.no_grad() if not name.startswith("training") else torch.enable_grad():
                while (seconds := time.perf_counter() - began) < BLOCK_SECONDS:
                    do()
                    done += 1
            if number >= 0:
                found[f"{name}/{number}"] = done * each / seconds / 1e9
    print(json.dumps(found))


if __name__ == "__main__":
    measure()
