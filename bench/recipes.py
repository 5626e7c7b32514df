"""Candidates for the recipes: trained on 50,000 samples of MNIST, scored on the 10,000 held out, never on the test set.

`python -m bench.recipes [PART OF A NAME ...] [--seeds N]`. Each row is a network and a way to train it, on
one thread, as many trainings at a time as there are processors; seconds are those of the steps and of one evaluation.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import nn

from bench.calibration.common import mnist
from bench.speed.common import quick_plan
from bench.tables import head, row, spread
from training.config.plan import Plan
from training.config.recipes import RECIPES
from training.config.spec import DEFAULTS, Augmentation, TrainSpec
from training.data.batches import Batches
from training.data.dataset_store import open_store
from training.loop.evaluate import evaluate
from training.loop.train_step import TrainStep, prepare_process
from training.models.cnn import Committee, LastConvolution, build

HELD_OUT: Final = 10_000
SEEDS: Final = 3

Layers = Sequence[int | str]
"""Of a network: channels of its convolutions, the first one 5x5 with stride 2; the last one and each with `unpadded`
before it have no padding; `pool` after batch norm and ReLU, `early pool` before them."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A network and how it is trained."""

    spec: TrainSpec
    layers: Layers = ()
    """Empty: the registered model that the spec names."""
    members: int = 1
    """More than one: a committee of such networks."""


FAST: Final = replace(DEFAULTS, model="cnn-small", batch_size=192, learning_rate=0.007, validation_samples=0)
"""What `fast` was until 0.10.0."""
AFFINE: Final = Augmentation(rotate_degrees=10, translate=0.1)
LESS: Final = Augmentation(rotate_degrees=7, translate=0.07)
SGD: Final = replace(FAST, optimizer="sgd", momentum=0.9, weight_decay=0.0005, batch_size=256, learning_rate=0.2)
LONGER: Final = replace(SGD, epochs=3, label_smoothing=0.1, augmentation=AFFINE)
MUON: Final = replace(LONGER, optimizer="muon", momentum=0.95, weight_decay=0.01, learning_rate=0.02)
MOST: Final = replace(MUON, epochs=18, augmentation=replace(AFFINE, scale=0.1))
WIDE: Final[Layers] = (48, 96, "early pool", 128, "early pool", 192)
DEEP: Final[Layers] = (16, 32, "early pool", 64, 64, "early pool", 64, 64)
THREE: Final[Layers] = (16, 48, "early pool", 64, "early pool", 64)
WIDER: Final[Layers] = (24, 48, "early pool", 64, "early pool", 96)
SMALLER: Final[Layers] = ("unpadded", *WIDER)
FLAT: Final[Layers] = ("unpadded", 32, 64, "early pool", 64, "early pool", 96)
SHORTER: Final = replace(MUON, epochs=2, augmentation=LESS, batch_size=192)


def valid(stem: int, first: int, second: int, last: int) -> Layers:
    """Return a network without any padding, as those of the recipes."""
    return ("unpadded", stem, "unpadded", first, "early pool", "unpadded", second, last)


CANDIDATES: Final[Mapping[str, Candidate]] = {
    "fast: as it is": Candidate(RECIPES["fast"]),
    "fast: 16-32-48-64": Candidate(FAST),
    "fast: pooling after batch norm and ReLU": Candidate(FAST, (16, 32, "pool", 48, "pool", 64)),
    "fast: 64 channels in the third layer": Candidate(FAST, (16, 32, "early pool", 64, "early pool", 64)),
    "fast: batch 128, rate 0.005": Candidate(replace(FAST, batch_size=128, learning_rate=0.005)),
    "fast: batch 256, rate 0.01": Candidate(replace(FAST, batch_size=256, learning_rate=0.01)),
    "fast: SGD, batch 256, rate 0.2": Candidate(SGD),
    "fast: Muon, batch 192, rate 0.02": Candidate(replace(FAST, optimizer="muon", momentum=0.95, learning_rate=0.02)),
    **{
        f"fast: 16-32-48-{last}": Candidate(FAST, (16, 32, "early pool", 48, "early pool", last))
        for last in (96, 128, 192)
    },
    **{
        f"fast: unpadded {stem}-{first}-{second}-{last}": Candidate(
            FAST, ("unpadded", stem, first, "early pool", second, "early pool", last)
        )
        for stem, first, second, last in (
            (16, 32, 48, 64), (16, 32, 48, 128), (16, 32, 48, 192), (16, 32, 64, 96), (16, 32, 64, 128),
            (24, 32, 48, 128), (24, 32, 64, 64), (16, 48, 48, 128), (16, 24, 64, 128), (12, 32, 64, 128),
            (12, 24, 64, 128), (16, 32, 64, 192),
        )
    },
    **{
        f"fast: unpadded 16-32-64-128, batch {size}, rate {rate}": Candidate(
            replace(FAST, batch_size=size, learning_rate=rate),
            ("unpadded", 16, 32, "early pool", 64, "early pool", 128),
        )
        for size, rate in ((192, 0.005), (256, 0.008), (256, 0.01), (384, 0.012))
    },
    **{
        f"fast: valid 16-32-64-128, batch {spec.batch_size}, {spec.optimizer}, rate {spec.learning_rate}, smoothing "
        f"{spec.label_smoothing}": Candidate(spec, valid(16, 32, 64, 128))
        for spec in (
            replace(FAST, batch_size=256, learning_rate=0.01),
            replace(FAST, batch_size=256, learning_rate=0.01, label_smoothing=0.1),
            replace(FAST, batch_size=256, learning_rate=0.02, label_smoothing=0.1),
            replace(FAST, batch_size=256, learning_rate=0.03, label_smoothing=0.1),
            replace(FAST, batch_size=320, learning_rate=0.02, label_smoothing=0.1),
            replace(FAST, batch_size=320, learning_rate=0.03, label_smoothing=0.1),
            replace(FAST, batch_size=384, learning_rate=0.02, label_smoothing=0.1),
            replace(MUON, batch_size=256, epochs=1, learning_rate=0.03, augmentation=Augmentation()),
            replace(MUON, batch_size=384, epochs=1, learning_rate=0.04, augmentation=Augmentation()),
            replace(MUON, batch_size=512, epochs=1, learning_rate=0.04, augmentation=Augmentation()),
        )
    },
    **{
        f"fast: valid {'-'.join(map(str, widths))}, batch 256, rate 0.02, smoothing 0.1": Candidate(
            replace(FAST, batch_size=256, learning_rate=0.02, label_smoothing=0.1), valid(*widths)
        )
        for widths in ((16, 32, 48, 96), (16, 24, 64, 128), (12, 24, 64, 128))
    },
    "fast: cnn": Candidate(replace(FAST, model="cnn")),
    "balanced: 24-48-64-96": Candidate(MUON, WIDER),
    "balanced: 24-48-64-96, SGD": Candidate(LONGER, WIDER),
    "balanced: 24-48-64-96, AdamW": Candidate(replace(LONGER, optimizer="adamw", learning_rate=0.01), WIDER),
    "balanced: 24-48-64-96, batch 512, rate 0.03": Candidate(
        replace(MUON, batch_size=512, learning_rate=0.03), WIDER
    ),
    "balanced: 24-48-64-96, 2 epochs": Candidate(replace(MUON, epochs=2), WIDER),
    "balanced: 24-48-64-96, 2 epochs, changed less": Candidate(replace(MUON, epochs=2, augmentation=LESS), WIDER),
    "balanced: 24-48-64-96, 2 epochs, batch 192": Candidate(replace(MUON, epochs=2, batch_size=192), WIDER),
    **{
        f"balanced: 24-48-64-96, 2 epochs, changed less, batch {size}": Candidate(
            replace(SHORTER, batch_size=size), WIDER
        )
        for size in (192, 128)
    },
    "balanced: unpadded 24-48-64-96": Candidate(MUON, SMALLER),
    "balanced: unpadded 24-48-64-96, changed less": Candidate(replace(MUON, augmentation=LESS), SMALLER),
    "balanced: unpadded 32-48-64-96": Candidate(MUON, ("unpadded", 32, 48, "early pool", 64, "early pool", 96)),
    "balanced: unpadded 32-64-64-96, 2 epochs, changed less": Candidate(SHORTER, FLAT),
    "balanced: unpadded 32-64-64-96, 2 epochs, changed less, rate 0.03": Candidate(
        replace(SHORTER, learning_rate=0.03), FLAT
    ),
    "balanced: unpadded 32-64-64-96, 2 epochs, changed less, smoothing 0.2": Candidate(
        replace(SHORTER, label_smoothing=0.2), FLAT
    ),
    **{
        f"balanced: unpadded {stem}-{first}-{second}-{last}, 2 epochs, changed less": Candidate(
            SHORTER, ("unpadded", stem, first, "early pool", second, "early pool", last)
        )
        for stem, first, second, last in (
            (32, 64, 64, 128), (32, 64, 96, 96), (32, 48, 96, 96), (24, 48, 96, 96), (32, 48, 96, 128),
            (32, 48, 64, 96), (32, 48, 64, 128), (32, 48, 64, 160), (24, 48, 64, 128),
        )
    },
    "balanced: unpadded 32-64-96-96, 2 epochs, changed less, batch 256": Candidate(
        replace(SHORTER, batch_size=256), ("unpadded", 32, 64, "early pool", 96, "early pool", 96)
    ),
    "balanced: unpadded 32-48-96-128, 2 epochs, changed less, batch 256, rate 0.025": Candidate(
        replace(SHORTER, batch_size=256, learning_rate=0.025), ("unpadded", 32, 48, "early pool", 96, "early pool", 128)
    ),
    "balanced: unpadded 32-48-64-128, 2 epochs, changed less, rate 0.03": Candidate(
        replace(SHORTER, learning_rate=0.03), ("unpadded", 32, 48, "early pool", 64, "early pool", 128)
    ),
    **{
        f"balanced: valid {'-'.join(map(str, widths))}, {spec.epochs} epochs, changed less, batch {spec.batch_size}, "
        f"rate {spec.learning_rate}": Candidate(spec, valid(*widths))
        for spec, widths in (
            (SHORTER, (32, 48, 64, 128)),
            (SHORTER, (32, 64, 96, 192)),
            (replace(SHORTER, learning_rate=0.03), (24, 48, 96, 192)),
            (replace(SHORTER, epochs=3, batch_size=256), (32, 48, 64, 128)),
        )
    },
    "balanced: 16-48-64-64": Candidate(MUON, THREE),
    "balanced: 16-48-64-64, 4 epochs": Candidate(replace(MUON, epochs=4), THREE),
    "balanced: 16-48-96-96": Candidate(MUON, (16, 48, "early pool", 96, "early pool", 96)),
    "balanced: 16-32-64-64-64-64": Candidate(MUON, DEEP),
    "balanced: 16-32-64-64-64-64, SGD": Candidate(LONGER, DEEP),
    "balanced: the same, late pooling": Candidate(LONGER, (16, 32, "pool", 64, 64, "pool", 64, 64)),
    "best: 48-96-128-192, 18 epochs": Candidate(MOST, WIDE),
    "best: valid 64-128-256-384, 24 epochs": Candidate(replace(MOST, epochs=24), valid(64, 128, 256, 384)),
    **{
        f"best: committee of {members}, 32-64-128-192, 80 epochs": Candidate(
            replace(MOST, epochs=80, batch_size=128 * members), valid(32, 64, 128, 192), members
        )
        for members in (3, 4)
    },
    "best: committee of 2, 64-128-256-384, 40 epochs": Candidate(
        replace(MOST, epochs=40, batch_size=512), valid(64, 128, 256, 384), 2
    ),
    "best: 48-96-128-192, of one size": Candidate(replace(MOST, augmentation=AFFINE), WIDE),
    "best: 48-96-128-192, SGD": Candidate(replace(MOST, optimizer="sgd", learning_rate=0.2, weight_decay=0.0005), WIDE),
    "best: 32-64-96-128": Candidate(MOST, (32, 64, "early pool", 96, "early pool", 128)),
    "best: 32-64-96-96-128-128": Candidate(MOST, (32, 64, "early pool", 96, 96, "early pool", 128, 128)),
}  # fmt: skip


def network(layers: Layers, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a fresh network."""
    inputs, modules, padded = shape[0], list[nn.Module](), True
    for number, layer in enumerate(layers):
        if isinstance(layer, str):
            # What pools before batch norm and ReLU has been put before them, with the convolution.
            if layer == "pool":
                modules.append(nn.MaxPool2d(2))
            padded = layer != "unpadded"
            continue
        last = number == len(layers) - 1
        kernel, stride = (3, 1) if modules else (5, 2)
        padding, padded = kernel // 2 * padded, True
        modules.append(
            LastConvolution(inputs, layer, kernel)
            if last
            else nn.Conv2d(inputs, layer, kernel, stride, padding, bias=False)
        )
        if not last and layers[number + 1] == "early pool":
            modules.append(nn.MaxPool2d(2))
        modules += [nn.BatchNorm2d(layer), nn.ReLU(inplace=True)]
        inputs = layer
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def train(name: str, seed: int) -> tuple[float, float, int]:
    """Return the share of the held-out samples that is recognized, the seconds, and the number of parameters."""
    candidate, store = CANDIDATES[name], open_store(mnist().path)
    spec = replace(candidate.spec, seed=seed, validation_samples=HELD_OUT)
    plan = one_thread(spec)

    def make(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
        if not candidate.layers:
            return build(name, shape, classes)
        members = [network(candidate.layers, shape, classes) for _ in range(candidate.members)]
        return members[0] if len(members) == 1 else Committee(members)

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


def one_thread(spec: TrainSpec) -> Plan:
    """Return a plan that leaves the other processors to other trainings."""
    return replace(quick_plan(spec), threads=1)


def main() -> None:
    """Train every candidate with every seed, and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.recipes", description=__doc__)
    parser.add_argument("names", nargs="*", help="only candidates whose name contains one of these")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N")
    asked = parser.parse_args()
    chosen = [name for name in CANDIDATES if not asked.names or any(part in name for part in asked.names)]
    mnist()  # prepared once, before the processes look for it
    processors = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    with context.Pool(processors, prepare_process, (one_thread(DEFAULTS),)) as pool:
        runs = pool.starmap(train, [(name, seed) for name in chosen for seed in range(asked.seeds)], chunksize=1)
    head("candidate", "parameters", f"recognized of {HELD_OUT:,} held out", "mean", "seconds on one thread")
    for number, name in enumerate(chosen):
        of_it = runs[number * asked.seeds : (number + 1) * asked.seeds]
        accuracies, seconds, parameters = zip(*of_it, strict=True)
        row(name, f"{parameters[0]:,}", spread(accuracies, ".2%"), f"{statistics.mean(accuracies):.3%}",
            spread(seconds, ".2f"))  # fmt: skip


if __name__ == "__main__":
    main()
