"""Trainings on imported data: at the speed of built-in data, with more data than memory, and from photographs."""

import json
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image, ImageDraw

from tools.bench.container import container
from tools.bench.data_import.common import ROUNDS, mnist, places, run, train, turns, work_directory
from tools.bench.pieces import Row
from tools.bench.record import judged, samples

STEPS: Final = 900
"""Steps of a training that is compared; a step has 64 samples."""
LEAST: Final = 0.97
LIMIT: Final = 1 << 30
"""Bytes of memory of the container with more data than memory."""
SIDE: Final = 64
TESTED: Final = 1_000
LEAST_LARGE: Final = 0.7
LARGE_ROUNDS: Final = 3
PHOTOGRAPHS, PHOTOGRAPH_SECONDS = 600, 60.0
CLASSES: Final = 10


def epoch() -> list[Row]:
    """Return the row of a training on imported and on built-in MNIST."""
    with work_directory() as root:
        environment = _with_mnist(root)
        for dataset in ("imported", "mnist"):  # prepares the data sets
            train(dataset, 1, environment)
        return [turns(
            f"training on imported data, {STEPS} steps", lambda: train("imported", STEPS, environment),
            lambda: train("mnist", STEPS, environment), LEAST, "on built-in data",
        )]  # fmt: skip


def calibration() -> list[Row]:
    """Return the row of a calibration for imported and for built-in MNIST."""
    with work_directory() as root:
        environment = _with_mnist(root)

        def seconds(dataset: str) -> float:
            words = ("calibrate", "--dataset", dataset, "--model", "cnn", "--epochs", "5", "--force-calibration",
                     "--json")  # fmt: skip
            return run(words, environment)[0]

        for dataset in ("imported", "mnist"):
            seconds(dataset)
        return [turns(
            "calibration for imported data", lambda: seconds("imported"), lambda: seconds("mnist"), LEAST,
            "for built-in data",
        )]  # fmt: skip


def _with_mnist(root: Path) -> Mapping[str, str]:
    """Import MNIST as `imported`; return the environment of commands that know it."""
    found, path, environment = mnist(), root / "mnist.npz", places(root)
    np.savez(
        path, x_train=found.train.images[:, 0], y_train=found.train.labels, x_test=found.test.images[:, 0],
        y_test=found.test.labels,
    )  # fmt: skip
    run(("data", "add", "imported", str(path), "--validation", "0", "--keep-duplicates"), environment)
    return environment


def large() -> list[Row]:
    """Return the row of data of twice the memory limit against data that fit; nothing of the large ones is cached."""
    sample = 3 * SIDE * SIDE
    with work_directory() as root, container(2.0, LIMIT) as box:
        environment = places(root)
        for name, size in (("large", 2 * LIMIT), ("small", LIMIT // 16)):
            _add_noise(root, name, size // sample, environment)
        stores = [*(root / "data" / "imported" / "stores").glob("*.safetensors")]

        def seconds(dataset: str) -> float:
            for store in stores:
                _forget(store)
            return train(dataset, STEPS, environment, box.enter)

        seconds("small")
        pairs = [(seconds("large"), seconds("small")) for _ in range(LARGE_ROUNDS)]
        kills = box.kills()
    ratios = [small / large for large, small in pairs]
    return [(
        f"training on {2 * LIMIT >> 30} GiB in a container of {LIMIT >> 30} GiB, {STEPS} steps",
        samples([each for each, _ in pairs], ".1f", " s"),
        f"{samples([each for _, each in pairs], '.1f', ' s')} on {LIMIT // 16 >> 20} MiB",
        f"{samples(ratios, '.2f')} of the speed beside it, at least {LEAST_LARGE:g}; {kills} killed for memory",
        judged(statistics.median(ratios) >= LEAST_LARGE and kills == 0),
    )]  # fmt: skip


def _add_noise(root: Path, name: str, count: int, environment: Mapping[str, str]) -> None:
    """Import `count` coloured pictures of noise, and some to test on."""
    path, rng = root / f"{name}.npz", np.random.default_rng(count)

    def noise(number: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return np.frombuffer(rng.bytes(number * 3 * SIDE * SIDE), np.uint8).reshape(number, SIDE, SIDE, 3)

    np.savez(
        path, x_train=noise(count), y_train=np.arange(count) % CLASSES, x_test=noise(TESTED),
        y_test=np.arange(TESTED) % CLASSES,
    )  # fmt: skip
    run(("data", "add", name, str(path), "--validation", "0", "--keep-duplicates"), environment)
    path.unlink()


def _forget(path: Path) -> None:
    """Have the kernel drop the cached pages of a file, which other containers would read for nothing."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def photographs() -> list[Row]:
    """Return the row of two commands: photographs are imported, and a model is trained on them."""
    taken, accuracies = list[float](), list[float]()
    with work_directory() as root:
        tree = root / "photographs"
        for number in range(PHOTOGRAPHS):
            _photograph(tree / f"colour {number % CLASSES}" / f"{number}.jpg", number % CLASSES, number)
        for turn in range(ROUNDS):
            (own := root / str(turn)).mkdir()
            environment = places(own)
            added, _ = run(("data", "add", "photographs", str(tree)), environment)
            trained, printed = run(("train", "--dataset", "photographs", "--json"), environment)
            taken.append(added + trained)
            accuracies.append(100 * json.loads(printed)["test_accuracy"])
    return [(
        f"from {PHOTOGRAPHS} photographs of 1600x1200 to a result", samples(taken, ".1f", " s"),
        f"test accuracy {samples(accuracies, '.1f', ' %')}, {CLASSES} classes", f"at most {PHOTOGRAPH_SECONDS:g} s",
        judged(statistics.median(taken) <= PHOTOGRAPH_SECONDS),
    )]  # fmt: skip


def _photograph(path: Path, label: int, seed: int) -> None:
    """Save a JPEG of a shape in the colour of its class before an uneven background."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(60, 160, (12, 16, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((1600, 1200), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 6, (1200, 1600, 1))
    picture = Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8))
    middle = (float(rng.uniform(600, 1000)), float(rng.uniform(500, 700)))
    ImageDraw.Draw(picture).regular_polygon(
        (*middle, float(rng.uniform(250, 450))), 3 + seed % 4, rotation=int(rng.integers(0, 360)),
        fill=f"hsv({label * 360 // CLASSES},{rng.integers(60, 100)}%,{rng.integers(60, 100)}%)",
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path, quality=88)
