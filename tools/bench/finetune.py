"""A model of the recipe `balanced` on MNIST: how it reads photographs, and how it learns another hand.

    PYTHONPATH=tests python -m tools.bench.finetune [PART ...] [--minutes N]

`photographs`: 200 generated ones (tests/support/files/photographs.py), and MNIST's test images as PNG files. `hand`:
fine-tuning on 2,000 samples of MNIST's digits as another hand writes them, leaning, turned, narrow and bold. Each call
trains the model first; all takes six minutes. MNIST is read from PREFLIGHT_DATA_DIR.
"""

import io
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFilter
from support.files.photographs import photograph

from preflight import Recognizer
from tools.bench.pieces import Bench, Row
from tools.bench.record import judged
from training.artifacts.loading import find, load
from training.data.builtin.catalog import MNIST
from training.data.datasets import LabeledImages, Samples
from worker.config import settings

SAMPLES: Final = 2_000
RECIPE: Final = "balanced"
PHOTOGRAPHS: Final = 200
LEAST_RIGHT, LEAST_UNCERTAIN = 0.95, 0.8
"""Least shares: photographs that are read right, and uncertain ones of those that are read wrong."""
POINTS_AS_PNG, POINTS_OF_OWN_HAND = 0.05, 0.3
"""Accuracy that may be lost, in points."""
SECONDS: Final = 15.0


class Place:
    """Directory in which the model is trained, for all parts of a call."""

    def __init__(self) -> None:
        self._work = tempfile.TemporaryDirectory(prefix="preflight-")
        self.root = Path(self._work.name)
        self.mnist: Samples = MNIST.load(settings.load().data_dir, download=False)
        own = {f"PREFLIGHT_{name.upper()}_DIR": str(self.root / name) for name in ("state", "cache", "artifact")}
        self.environment = {**os.environ, **own, "PREFLIGHT_REPORT": "off"}
        self.train("mnist", "parent")

    def artifact(self, job_id: str) -> Path:
        """Return the directory of a model."""
        return self.root / "artifact" / job_id

    def train(self, dataset: str, job_id: str, *options: str) -> float:
        """Train, and return the seconds until the result was printed."""
        began = time.monotonic()
        self.run("train", "--dataset", dataset, "--recipe", RECIPE, "--json", "--job-id", job_id, *options)
        return time.monotonic() - began

    def run(self, *words: str) -> str:
        """Run `preflight`; return its output."""
        command = [sys.executable, "-P", "-m", "worker.cli", *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-2000:])
        return done.stdout


place = cache(Place)


def photographs() -> list[Row]:
    """Return the rows on photographs, and on MNIST's images as files."""
    recognizer, test = Recognizer(place().artifact("parent")), place().mnist.test
    chosen = [int(np.random.default_rng(1000 + seed).integers(len(test.labels))) for seed in range(PHOTOGRAPHS)]
    found = recognizer.recognize_all([photograph(test.images[one, 0], seed) for seed, one in enumerate(chosen)])
    wrong = [one for one, sample in zip(found, chosen, strict=True) if one.label != test.labels[sample]]
    right, uncertain = 1 - len(wrong) / PHOTOGRAPHS, sum(one.uncertain is True for one in wrong)
    pictured = recognizer.recognize_all([as_png(image[0]) for image in test.images])
    accuracy = 100 * (1 - error(place().artifact("parent"), test))
    as_files = 100 * float(np.mean([one.label for one in pictured] == test.labels))
    return [
        (f"{PHOTOGRAPHS} photographs read right", f"{100 * right:.1f} %", "", f"at least {100 * LEAST_RIGHT:g} %",
         judged(right >= LEAST_RIGHT)),
        ("of the others uncertain", f"{uncertain} of {len(wrong)}", "", f"at least {100 * LEAST_UNCERTAIN:g} %",
         judged(uncertain >= LEAST_UNCERTAIN * len(wrong))),
        ("MNIST's test images as PNG files", f"{as_files:.2f} %", f"{accuracy:.2f} % as arrays",
         f"at most {POINTS_AS_PNG} points lost", judged(as_files >= accuracy - POINTS_AS_PNG - 1e-9)),
    ]  # fmt: skip


def as_png(image: npt.NDArray[np.uint8]) -> bytes:
    """Return a picture as a file."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG", compress_level=0)
    return file.getvalue()


def hand() -> list[Row]:
    """Return the rows on the seconds of fine-tuning, and on the errors of both models on both hands."""
    own = place().mnist.test
    other = add_hand(place())
    seconds = place().train("hand", "child", "--init-from", "parent")
    before, after = (
        [100 * error(place().artifact(name), samples) for samples in (own, other)] for name in ("parent", "child")
    )
    return [
        (f"fine-tuning on {SAMPLES:,} samples of another hand, to the result", f"{seconds:.1f} s", "",
         f"at most {SECONDS:g} s", judged(seconds <= SECONDS)),
        ("error on the other hand", f"{after[1]:.2f} %", f"{before[1]:.2f} % before", "at most half",
         judged(after[1] <= before[1] / 2)),
        ("accuracy on MNIST's test images", f"{100 - after[0]:.2f} %", f"{100 - before[0]:.2f} % before",
         f"at most {POINTS_OF_OWN_HAND} points lost", judged(after[0] <= before[0] + POINTS_OF_OWN_HAND + 1e-9)),
    ]  # fmt: skip


def add_hand(at: Place) -> LabeledImages:
    """Import the other hand as the data set `hand`; return its test samples."""
    train, test = at.mnist.train, at.mnist.test
    at.environment["PREFLIGHT_DATA_DIR"] = str(at.root / "data")
    some, tested = written_by_another(train.images[:SAMPLES, 0]), written_by_another(test.images[:, 0])
    np.savez(at.root / "hand.npz", x_train=some, y_train=train.labels[:SAMPLES], x_test=tested, y_test=test.labels)
    at.run("data", "add", "hand", str(at.root / "hand.npz"))
    return LabeledImages(tested[:, None], test.labels)


def written_by_another(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return digits uint8 [N, 28, 28] as another hand writes them: they lean, are turned, narrow and bold."""
    lean, turn, narrow = 0.45, np.radians(12), 0.8
    cos, sin = np.cos(turn), np.sin(turn)
    matrix = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1 / narrow, lean], [0, 1]])
    offset = 13.5 - matrix @ (13.5, 13.5)
    coefficients = (matrix[0, 0], matrix[0, 1], offset[0], matrix[1, 0], matrix[1, 1], offset[1])
    return np.stack([
        np.asarray(
            Image.fromarray(image).transform((28, 28), Image.Transform.AFFINE, coefficients, Image.Resampling.BILINEAR)
            .filter(ImageFilter.MaxFilter(3))
        )
        for image in images
    ])  # fmt: skip


def error(artifact: Path, samples: LabeledImages) -> float:
    """Return the share of samples that a model takes for another class."""
    model, images = load(find(artifact)), torch.from_numpy(samples.images.copy())
    with torch.inference_mode():
        found = torch.cat([model(some).argmax(1) for some in images.split(256)]).numpy()
    return float((found != samples.labels).mean())


BENCH: Final = Bench(
    name="finetune", command="PYTHONPATH=tests python -m tools.bench.finetune",
    leaves_out="nothing: fine-tuning is the whole command", parts={"photographs": photographs, "hand": hand},
)  # fmt: skip


if __name__ == "__main__":
    BENCH.main(__doc__)
