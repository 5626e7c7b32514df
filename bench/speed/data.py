"""The data path alone: batches gathered, augmented and normalised here, and by a DataLoader with the same augmentation.

    python -m bench.speed data

The DataLoader applies to one sample at a time what a user writes with torchvision, PIL and numpy. Both run with as many
workers as there are cores, and with none; the quicker way of either counts. All ways take turns in one process.
"""

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
from PIL import Image, ImageFilter
from torchvision import transforms

from bench.calibration.common import mnist
from bench.record import judged, samples, start
from bench.speed.common import BenchOptions, own_plan
from bench.speed.peers import loaders
from calibration.space import PREFETCH
from preflight.contract.plan import Plan
from preflight.contract.spec import DEFAULTS, Augmentation, TrainSpec
from training.data.batches import Batches
from training.data.dataset_store import PreparedDataset, open_dataset
from training.step.train_step import prepare_process

BATCH: Final = 512
LARGE: Final = 1024
"""For full augmentation, too: some hundred short operations a batch cost more than their work where it is small."""
ROUNDS: Final = 5
BLOCK_SECONDS: Final = 2.0
FULL: Final = Augmentation(
    rotate_degrees=10, translate=0.1, noise_probability=0.02, dots_probability=0.3, blur_sigma=0.7,
    erode_probability=0.2, dilate_probability=0.2,
)  # fmt: skip
ROWS: Final = (
    ("none", Augmentation(), BATCH), ("affine", Augmentation(rotate_degrees=10, translate=0.1), BATCH),
    ("full", FULL, BATCH), ("full", FULL, LARGE),
)  # fmt: skip
BOUND, TIMES = 150_000, 10


class PerSample:
    """`Augmentation` for one PIL image."""

    def __init__(self, augmentation: Augmentation) -> None:
        self._wanted = augmentation
        shift = augmentation.translate
        self._affine = transforms.RandomAffine(augmentation.rotate_degrees, translate=(shift, shift))

    def __call__(self, image: Image.Image) -> Image.Image:
        """Change an image."""
        wanted = self._wanted
        if wanted.rotate_degrees or wanted.translate:
            image = self._affine(image)
        draw = random.random()  # noqa: S311 - pictures are no secret
        if draw < wanted.erode_probability:
            image = image.filter(ImageFilter.MinFilter(wanted.morphology_kernel))
        elif draw < wanted.erode_probability + wanted.dilate_probability:
            image = image.filter(ImageFilter.MaxFilter(wanted.morphology_kernel))
        if wanted.blur_sigma:
            image = image.filter(ImageFilter.GaussianBlur(random.uniform(0, wanted.blur_sigma)))  # noqa: S311
        if not (wanted.dots_probability or wanted.noise_probability):
            return image
        pixels = np.array(image)
        if random.random() < wanted.dots_probability:  # noqa: S311
            for _ in range(wanted.dots_count):
                top, left = (random.randrange(side - wanted.dots_size + 1) for side in pixels.shape)  # noqa: S311
                pixels[top : top + wanted.dots_size, left : left + wanted.dots_size] = 255
        draws = np.random.random(pixels.shape)
        pixels[draws < wanted.noise_probability] = 0
        pixels[draws < wanted.noise_probability * wanted.salt_vs_pepper] = 255
        return Image.fromarray(pixels)


def main(asked: BenchOptions) -> None:  # noqa: ARG001 - every part is called alike
    """Measure and print."""
    record = start("data", "python -m bench.speed data", "training steps")
    plan = replace(own_plan(DEFAULTS), memory_format="channels_last")
    prepare_process(plan)
    store = open_dataset(mnist().path)
    workers = plan.threads
    record.head("augmentation", "batch", "here, samples/s", f"here, {workers} workers", "DataLoader, no worker",
         f"DataLoader, {workers} workers", "the quicker ones against each other", "bound", "")  # fmt: skip
    loading = replace(plan, loader_workers=workers, prefetch_factor=PREFETCH)
    for kind, augmentation, size in ROWS:
        spec = replace(DEFAULTS, batch_size=size, augmentation=augmentation)
        ways = [
            *(partial(_ours, store, spec, each) for each in (plan, loading)),
            *(partial(_theirs, store, augmentation, size, each) for each in (0, workers)),
        ]
        speeds: list[list[float]] = [[] for _ in ways]
        for _ in range(ROUNDS):
            for way, found in zip(ways, speeds, strict=True):
                found.append(_speed(way, size))
        ratios = [max(found[:2]) / max(found[2:]) for found in zip(*speeds, strict=True)]
        reached = max(map(statistics.median, speeds[:2])) >= BOUND and statistics.median(ratios) >= TIMES
        bound = (f"{BOUND:,}/s, {TIMES}x", judged(reached)) if kind == "full" else ("", "")
        record.row(kind, str(size), *(samples(each, ",.0f") for each in speeds), samples(ratios, ".1f"), *bound)
    record.write()


def _ours(store: PreparedDataset, spec: TrainSpec, plan: Plan) -> Iterator[object]:
    batches = Batches(store, spec, plan)
    for epoch in itertools.count():
        yield from batches.of(epoch)


def _theirs(store: PreparedDataset, augmentation: Augmentation, size: int, workers: int) -> Iterator[object]:
    train, _ = loaders(store, size, PerSample(augmentation), workers=workers)
    while True:
        yield from train


def _speed(way: Callable[[], Iterator[object]], size: int) -> float:
    """Return samples per second over a block; what workers have ready at its beginning is drawn first.

    Its workers live no longer than the block: even idle ones would slow what is timed next.
    """
    source = way()
    for _ in range(5):
        next(source)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < BLOCK_SECONDS:
        next(source)
        count += size
    seconds = time.perf_counter() - began
    del source
    gc.collect()  # a loader ends its workers when it is collected
    return count / seconds
