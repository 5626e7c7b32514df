"""ResNet-18 on MNIST against the loop a user writes down first, both with random rotation and translation.

    python -m bench.speed resnet

The naive loop: float32, contiguous, glibc's allocator, AdamW, a DataLoader with two workers and per-sample PIL
augmentation. Ours: the plan that calibration chooses. Fresh processes in turns.
"""

from dataclasses import replace
from typing import Final

from bench.calibration.common import mnist, plan_in_words
from bench.speed import peers
from bench.speed.common import Asked, as_json, ask, calibrated
from bench.tables import head, judged, row, spread
from training.spec import DEFAULTS, Augmentation

ROUNDS: Final = 5
STEPS: Final = 15
BOUND: Final = 2.8


def main(asked: Asked) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    store = str(mnist().path)
    augmentation = Augmentation(rotate_degrees=peers.ROTATE_DEGREES, translate=peers.TRANSLATE)
    spec = replace(DEFAULTS, model="resnet18", augmentation=augmentation)
    plan = calibrated(spec).plan
    ours, theirs = [], []
    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 else (1, 0):
            if side:
                found = ask("bench.speed.steps", {**as_json(spec, plan), "steps": STEPS, "store": store}, plan)
                ours.append(found["samples_per_s"])
            else:
                found = ask("bench.speed.peers", {"peer": "naive", "seed": number, "store": store, "steps": STEPS,
                                                  "batch": spec.batch_size})  # fmt: skip
                theirs.append(found["samples_per_s"])
    ratios = [fast / slow for fast, slow in zip(ours, theirs, strict=True)]
    head("resnet18, samples/s", "naive loop", "here", "ratio, round by round", "bound", "")
    row(plan_in_words(plan), spread(theirs, ",.0f"), spread(ours, ",.0f"), spread(ratios, ".2f"), f"{BOUND:g}x",
        judged(sorted(ratios)[len(ratios) // 2] >= BOUND))  # fmt: skip
