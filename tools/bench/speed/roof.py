"""Roofline: training compared with the fastest convolution of the machine.

    python -m tools.bench.speed roof

In one process, in turns: 3x3 convolutions of ResNet-18's shapes, forward and backward; matrix products; and training
steps of the models. Operations are those of the library's convolutions, as torch's FlopCounterMode counts them: with
products by the padding, which training/models/weight_gradients.py leaves out. The roof is the quickest of the library's
convolutions forward. ResNet-18 could at best be as fast as these convolutions alone, as often as it has them, with
nothing between. And where the library is slow, the same as matrix products. All in bfloat16 where the processor has
instructions for it, else in float32; the bound is meant for the former.
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

import torch
from torch.nn import functional as F

from preflight.contract.plan import WeightGradients
from preflight.contract.spec import DEFAULTS
from tools.bench.calibration.common import mnist
from tools.bench.record import judged, samples, start
from tools.bench.speed.common import BenchOptions, as_json, ask, fast_plan

SHAPES: Final = ((64, 28), (128, 14), (256, 7), (512, 4))
"""Channels and side of the images of ResNet-18's four stages."""
TIMES: Final = (4, 3, 3, 3)
"""How often it has them: three in four of its 3x3 convolutions, and all but a tenth of its operations."""
BATCH: Final = 128
GRADIENTS: Final = ((128, 256, 14, 2), (256, 512, 7, 2), (512, 512, 4, 1))
"""Channels in and out, side and stride of those of its 3x3 convolutions whose weights' gradients are the slowest."""
MATRIX: Final = 2048
TRAININGS: Final[tuple[tuple[str, int, WeightGradients], ...]] = (
    ("resnet18", 128, "products"), ("resnet18", 256, "library"), ("resnet18", 256, "products"),
    ("cnn", 128, "library"),
)  # fmt: skip
"""Model, batch, and how the slow gradients of weights are computed."""
BOUNDED: Final = "training resnet18, batch 256, gradients of weights by products"
BLOCK_SECONDS: Final = 1.0
ROUNDS: Final = 7
BOUND: Final = 0.70


def main(asked: BenchOptions) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    record = start("roof", "python -m tools.bench.speed roof", "validation")
    spec = replace(DEFAULTS, batch_size=BATCH)
    plan = fast_plan(spec)
    found = ask("tools.bench.speed.roof", {**as_json(spec, plan), "store": str(mnist().path)}, plan)
    names = sorted({name.rpartition("/")[0] for name in found})
    series = {name: [found[f"{name}/{number}"] for number in range(ROUNDS)] for name in names}
    convolutions = [name for name in names if name.startswith("convolution")]
    roof = max(convolutions, key=lambda name: statistics.median(series[name]))
    record.head(f"in {plan.precision}", "GFLOP/s", f"of the roof ({roof}), round by round", "bound", "")
    series["resnet18's convolutions, nothing between"] = [
        _alone({name: series[name][number] for name in convolutions}) for number in range(ROUNDS)
    ]
    for name in series:
        shares = [value / top for value, top in zip(series[name], series[roof], strict=True)]
        bound = (f"{BOUND:.0%}", judged(statistics.median(shares) >= BOUND)) if name == BOUNDED else ("", "")
        record.row(name, samples(series[name], ",.0f"), samples(shares, ".0%"), *bound)
    record.write()


def _alone(rates: dict[str, float]) -> float:
    """Return the GFLOP/s of all of ResNet-18's convolutions, one after the other, a third of the operations forward."""
    seconds = operations = 0.0
    for (channels, side), times in zip(SHAPES, TIMES, strict=True):
        each = times * side**2 * channels**2
        seconds += each / rates[_forward(channels, side)] + 2 * each / rates[_backward(channels, side)]
        operations += 3 * each
    return operations / seconds


def _forward(channels: int, side: int) -> str:
    return f"convolution, {channels} channels at {side}x{side}"


def _backward(channels: int, side: int) -> str:
    return f"{_forward(channels, side)}, backward"


def _gradient(inputs: int, outputs: int, side: int, stride: int) -> str:
    return f"gradient of weights, {inputs} to {outputs} channels at {side}x{side}, stride {stride}"


def measure() -> None:
    """Run the measuring process: print the GFLOP/s of everything in every round."""
    from torch.utils.flop_counter import FlopCounterMode

    from calibration.measure.candidate import Candidate
    from tools.bench.speed.common import PLAN, SPEC
    from training.data.dataset_store import open_dataset
    from training.models.weight_gradients import MAX_INSIDE, Geometry, convolve, weight_gradient
    from training.step.train_step import DTYPES, prepare_process

    asked = json.loads(sys.argv[1])
    spec, plan = SPEC.validate_json(json.dumps(asked["spec"])), PLAN.validate_json(json.dumps(asked["plan"]))
    prepare_process(plan)
    dtype, layout = DTYPES[plan.precision], torch.channels_last
    work: dict[str, tuple[float, Callable[[], object]]] = {}
    for channels, side in SHAPES:
        images = torch.randn(BATCH, channels, side, side).to(dtype, memory_format=layout)
        weight = torch.randn(channels, channels, 3, 3).to(dtype, memory_format=layout)
        operations = 2 * BATCH * side**2 * channels**2 * 9
        work[_forward(channels, side)] = operations, partial(F.conv2d, images, weight, padding=1)
        work[_backward(channels, side)] = 2 * operations, partial(
            torch.ops.aten.convolution_backward, F.conv2d(images, weight, padding=1), images, weight, None,
            [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False],
        )  # fmt: skip
    for inputs, outputs, side, stride in GRADIENTS:
        images = torch.randn(BATCH, inputs, side, side).to(dtype, memory_format=layout)
        weight = torch.randn(outputs, inputs, 3, 3).to(dtype, memory_format=layout)
        results = F.conv2d(images, weight, stride=stride, padding=1)
        name, operations = _gradient(inputs, outputs, side, stride), 2 * results.numel() * inputs * 9
        work[name] = operations, partial(
            torch.ops.aten.convolution_backward, results, images, weight, None,
            [stride, stride], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False],
        )  # fmt: skip
        geometry = Geometry(3, stride, 1)
        work[f"{name}, as matrix products"] = operations, partial(weight_gradient, images, results, geometry)
        forward = f"forward, {inputs} to {outputs} channels at {side}x{side}, stride {stride}, as matrix products"
        if geometry.inside(side) ** 2 <= MAX_INSIDE:
            work[forward] = operations, partial(convolve, images, weight.permute(2, 3, 1, 0), geometry)
    left, right = (torch.randn(MATRIX, MATRIX).to(dtype) for _ in range(2))
    work[f"matrix product, {MATRIX}"] = 2 * MATRIX**3, partial(torch.mm, left, right)
    store = open_dataset(Path(asked["store"]))
    for model, batch, gradients in TRAININGS:
        asked_spec, library = replace(spec, model=model, batch_size=batch), replace(plan, micro_batch=batch)
        with FlopCounterMode(display=False) as counter:
            counted = Candidate(asked_spec, library, store)
            counted.step.gradients(*counted.next_batch())
        candidate = Candidate(asked_spec, replace(library, weight_gradients=gradients), store)
        name = f"training {model}, batch {batch}, gradients of weights by {gradients}"
        work[name] = counter.get_total_flops(), partial(candidate.run, 1)
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
