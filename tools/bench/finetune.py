"""Fine-tuning: a `balanced` model of MNIST learns another hand from 2,000 samples; `python -m tools.bench.finetune`.

The other hand is MNIST's, leaning, turned, narrow and bold. Printed are the seconds from the command to the result, and
the errors of both models on the test samples of both hands. `--parent DIR` takes a model that is there already.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageFilter

from training.artifacts.loading import find, load
from training.data.builtin.catalog import MNIST
from training.data.datasets import LabeledImages

SAMPLES = 2_000
RECIPE = "balanced"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent", type=Path, help="directory of a model of the recipe `balanced`")
    parser.add_argument("fields", nargs="*", help="further options of the fine-tuning")
    given = parser.parse_args()
    data = Path(os.environ.get("PREFLIGHT_DATA_DIR", "data"))
    mnist = MNIST.load(data, download=False)
    with tempfile.TemporaryDirectory(prefix="preflight-") as work:
        root = Path(work)
        environment = {
            **os.environ, "PREFLIGHT_STATE_DIR": str(root / "state"), "PREFLIGHT_ARTIFACT_DIR": str(root / "artifacts"),
            "PREFLIGHT_CACHE_DIR": str(root / "cache"), "PREFLIGHT_REPORT": "off",
        }  # fmt: skip
        (root / "artifacts").mkdir()
        if given.parent is None:
            train("mnist", "parent", environment)
        else:
            (root / "artifacts" / "parent").mkdir()
            for file in given.parent.iterdir():
                if file.is_file():
                    (root / "artifacts" / "parent" / file.name).write_bytes(file.read_bytes())
        hand = add_hand(mnist.train, mnist.test, root, environment)
        seconds = train("hand", "child", environment, "--init-from", "parent", *given.fields)
        models = {name: root / "artifacts" / name for name in ("parent", "child")}
        report = {
            name: {"its own hand": error(path, mnist.test), "the other hand": error(path, hand)}
            for name, path in models.items()
        }
    print(f"seconds from the command to the result: {seconds:.1f}")
    print(f"{'errors, %':12}{'MNIST':>8}{'other hand':>12}")
    for name, errors in report.items():
        own, other = errors.values()
        print(f"{name:12}{100 * own:8.2f}{100 * other:12.2f}")
    (own, other), (own_after, other_after) = (report[name].values() for name in ("parent", "child"))
    print(f"error on the other hand: {other_after / other:.2f} of what it was (bound 0.5)")
    print(f"accuracy on MNIST: {100 * (own - own_after):+.2f} points (bound -0.3)")


def train(dataset: str, job_id: str, environment: dict[str, str], *options: str) -> float:
    """Train, and return the seconds until the result was printed."""
    command = [sys.executable, "-P", "-m", "worker.cli", "train", "--dataset", dataset, "--recipe", RECIPE, "--json",
               "--job-id", job_id, *options]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    json.loads(done.stdout)
    return time.monotonic() - began


def add_hand(train: LabeledImages, test: LabeledImages, root: Path, environment: dict[str, str]) -> LabeledImages:
    """Import the other hand as the data set `hand`; return its test samples."""
    environment["PREFLIGHT_DATA_DIR"] = str(root / "data")
    some, tested = written_by_another(train.images[:SAMPLES, 0]), written_by_another(test.images[:, 0])
    np.savez(
        root / "hand.npz", x_train=some, y_train=train.labels[:SAMPLES], x_test=tested, y_test=test.labels
    )  # fmt: skip
    command = [sys.executable, "-P", "-m", "worker.cli", "data", "add", "hand", str(root / "hand.npz")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
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


if __name__ == "__main__":
    main()
