"""Candidates for the recipes: trained on 50,000 samples of MNIST, scored on the 10,000 held out, never on the test set.

`python -m bench.recipes [PART OF A NAME ...] [--seeds N]`. Each row is a network and a way to train it; the seconds are
those of the training steps and of one evaluation, on this machine and with other candidates' in turns, seed by seed.
"""

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import nn

from bench.calibration.common import mnist
from bench.speed.common import quick_plan
from bench.tables import head, row, spread
from training.batches import Batches
from training.evaluate import evaluate
from training.models import build
from training.recipes import RECIPES
from training.spec import DEFAULTS, Augmentation, TrainSpec
from training.step import TrainStep, prepare_process
from training.store import Store, open_store

HELD_OUT: Final = 10_000
SEEDS: Final = 3

Layers = Sequence[int | str]
"""Of a network: channels of its convolutions, the first one 5x5 with stride 2, the last one without padding; `pool`
after batch norm and ReLU, `early pool` before them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A network and how it is trained."""

    spec: TrainSpec
    layers: Layers = ()
    """Empty: the registered model that the spec names."""


FAST: Final = RECIPES["fast"]
EARLY: Final[Layers] = (16, 32, "early pool", 48, "early pool", 64)
AFFINE: Final = Augmentation(rotate_degrees=10, translate=0.1)
SGD: Final = replace(FAST, optimizer="sgd", momentum=0.9, weight_decay=0.0005, batch_size=256, learning_rate=0.2)
LONGER: Final = replace(SGD, epochs=3, label_smoothing=0.1, augmentation=AFFINE)
CANDIDATES: Final[Mapping[str, Candidate]] = {
    "fast: as it is": Candidate(FAST),
    "fast: pooling after batch norm and ReLU": Candidate(FAST, (16, 32, "pool", 48, "pool", 64)),
    "fast: 64 channels in the third layer": Candidate(FAST, (16, 32, "early pool", 64, "early pool", 64)),
    "fast: batch 128, rate 0.005": Candidate(replace(FAST, batch_size=128, learning_rate=0.005)),
    "fast: batch 256, rate 0.01": Candidate(replace(FAST, batch_size=256, learning_rate=0.01)),
    "fast: SGD, batch 256, rate 0.2": Candidate(SGD),
    "fast: cnn": Candidate(replace(FAST, model="cnn")),
    "balanced: cnn, 3 epochs": Candidate(replace(LONGER, model="cnn")),
    "balanced: 24 channels, 3 epochs": Candidate(LONGER, (24, 48, "early pool", 64, 64, "early pool", 64, 64)),
    "balanced: the same, late pooling": Candidate(LONGER, (24, 48, "pool", 64, 64, "pool", 64, 64)),
}  # fmt: skip


def network(layers: Layers, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a fresh network."""
    inputs, modules = shape[0], list[nn.Module]()
    for number, layer in enumerate(layers):
        if isinstance(layer, str):
            # What pools before batch norm and ReLU has been put before them, with the convolution.
            if layer == "pool":
                modules.append(nn.MaxPool2d(2))
            continue
        first, last = number == 0, number == len(layers) - 1
        kernel, stride, padding = (5, 2, 2) if first else (3, 1, 0 if last else 1)
        modules.append(nn.Conv2d(inputs, layer, kernel, stride, padding, bias=False))
        if not last and layers[number + 1] == "early pool":
            modules.append(nn.MaxPool2d(2))
        modules += [nn.BatchNorm2d(layer), nn.ReLU(inplace=True)]
        inputs = layer
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def train(candidate: Candidate, seed: int, store: Store) -> tuple[float, float, int]:
    """Return the share of the held-out samples that is recognized, the seconds, and the number of parameters."""
    spec = replace(candidate.spec, seed=seed, validation_samples=HELD_OUT)
    plan = quick_plan(spec)

    def make(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
        return network(candidate.layers, shape, classes) if candidate.layers else build(name, shape, classes)

    began = time.perf_counter()
    step = TrainStep(spec, plan, store.info.shape, store.info.classes, make)
    batches = Batches(store, spec, plan)
    steps = (store.info.train_count - HELD_OUT) // spec.batch_size
    for epoch in range(spec.epochs):
        for number, (images, labels) in enumerate(batches.of(epoch)):
            step.run(images, labels, step.rate(epoch * steps + number, spec.epochs * steps, steps))
    images, labels = store.train_images[-HELD_OUT:], store.train_labels[-HELD_OUT:]
    score = evaluate(step, images, labels, store.info.mean, store.info.std)
    return score.accuracy, time.perf_counter() - began, sum(each.numel() for each in step.parameters)


def main() -> None:
    """Train every candidate with every seed, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.recipes", description=__doc__)
    parser.add_argument("names", nargs="*", help="only candidates whose name contains one of these")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N")
    asked = parser.parse_args()
    chosen = [name for name in CANDIDATES if not asked.names or any(part in name for part in asked.names)]
    prepare_process(quick_plan(DEFAULTS))
    store = open_store(mnist().path)
    found = {name: list[tuple[float, float, int]]() for name in chosen}
    for seed in range(asked.seeds):
        for name in chosen:
            found[name].append(train(CANDIDATES[name], seed, store))
    head("candidate", "parameters", f"recognized of {HELD_OUT:,} held out", "mean", "seconds")
    for name, runs in found.items():
        accuracies, seconds, parameters = zip(*runs, strict=True)
        row(name, f"{parameters[0]:,}", spread(accuracies, ".2%"), f"{statistics.mean(accuracies):.3%}",
            spread(seconds, ".2f"))  # fmt: skip


if __name__ == "__main__":
    main()
