"""ResNet-18 on MNIST against the loop a user writes down first, both with random rotation and translation.

    python -m tools.bench.speed resnet

The naive loop: float32, contiguous, glibc's allocator, AdamW, a DataLoader with two workers and per-sample PIL
augmentation. Ours: the plan that calibration chooses. Fresh processes in turns.
"""

from dataclasses import replace
from typing import Final

from preflight.contract.plan import Plan
from preflight.contract.spec import DEFAULTS, Augmentation, TrainSpec
from tools.bench.calibration.common import format_plan, mnist
from tools.bench.record import judged, samples, start
from tools.bench.speed import peers
from tools.bench.speed.common import BenchOptions, as_json, ask, calibrated

ROUNDS: Final = 5
SAMPLES: Final = 2048
"""Trained on in each process, after some to warm up."""
BATCHES: Final = {128: None, 256: 2.8}
"""Effective batch of both sides -> bound: 90 samples/s, against which 253 were called reachable (2.8x), had 256."""


def main(asked: BenchOptions) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    record = start(
        "resnet", "python -m tools.bench.speed resnet", "process starts, imports, calibration and validation"
    )
    augmentation = Augmentation(rotate_degrees=peers.ROTATE_DEGREES, translate=peers.TRANSLATE)
    record.head("resnet18, samples/s", "batch", "naive loop", "here", "ratio, round by round", "bound", "")
    for batch, bound in BATCHES.items():
        spec = replace(DEFAULTS, model="resnet18", batch_size=batch, augmentation=augmentation)
        plan = calibrated(spec).plan
        ours, theirs = measured(spec, plan)
        ratios = [fast / slow for fast, slow in zip(ours, theirs, strict=True)]
        judgement = ("", "") if bound is None else (f"{bound:g}x", judged(sorted(ratios)[ROUNDS // 2] >= bound))
        figures = (samples(theirs, ",.0f"), samples(ours, ",.0f"), samples(ratios, ".2f"))
        record.row(format_plan(plan), str(batch), *figures, *judgement)
    record.write()


def measured(spec: TrainSpec, plan: Plan) -> tuple[list[float], list[float]]:
    """Return samples a second of ours and of the naive loop, round by round."""
    store, steps = str(mnist().path), SAMPLES // spec.batch_size
    ours, theirs = [], []
    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 else (1, 0):
            if side:
                found = ask("tools.bench.speed.steps", {**as_json(spec, plan), "steps": steps, "store": store}, plan)
                ours.append(found["samples_per_s"])
            else:
                found = ask("tools.bench.speed.peers", {"peer": "naive", "seed": number, "store": store, "steps": steps,
                                                  "batch": spec.batch_size})  # fmt: skip
                theirs.append(found["samples_per_s"])
    return ours, theirs
