"""A data set of pictures in colour whose classes are not equally frequent: trained, scored by class, and asked."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from preflight.wire import TrainResult

pytestmark = pytest.mark.covers_children

SOURCE = """
import numpy as np

from training.data.datasets import LabeledImages, Samples

COUNTS, TEST = (240, 40, 20), (20, 20, 20)


class Flowers:
    classes, shape = 3, (3, 32, 40)

    def sources(self, data_dir):
        return ()

    def load(self, data_dir, *, download):
        random = np.random.default_rng(0)

        def some(counts):
            labels = np.repeat(np.arange(3, dtype=np.uint8), counts)
            images = random.integers(0, 120, (len(labels), 3, 32, 40), dtype=np.uint8)
            images[np.arange(len(labels)), labels] += 80
            order = random.permutation(len(labels))
            return LabeledImages(images[order], labels[order])

        return Samples(train=some(COUNTS), test=some(TEST), classes=3)


flowers = Flowers()
"""
FIELDS = (
    "--dataset", "flowers", "--epochs", "3", "--batch-size", "25", "--no-calibrate", "--sampler", "balanced",
    "--metric", "macro_f1", "--set", "plan.threads=1", "--set", "validation_samples=50",
    "--set", "augmentation.random_horizontal_flip=0.5", "--set", "augmentation.random_crop_padding=2",
    "--set", "augmentation.brightness=0.1", "--set", "augmentation.hue=0.02", "--set", "learning_rate=0.01",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where the package with the data set is installed, and what is trained on it."""

    environment: dict[str, str]

    def run(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-m", "worker.cli", *map(str, arguments)]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    root = tmp_path_factory.mktemp("pictures")
    installed = root / "site" / "mine-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[preflight.datasets]\nflowers = pictured_flowers:flowers\n")
    (root / "site" / "pictured_flowers.py").write_text(SOURCE)
    directories = {f"PREFLIGHT_{kind}_DIR": str(root / kind.lower()) for kind in ("DATA", "CACHE", "STATE", "ARTIFACT")}
    path = os.pathsep.join(filter(None, (str(root / "site"), os.environ.get("PYTHONPATH"))))
    return Place({**os.environ, **directories, "PYTHONPATH": path, "PREFLIGHT_REPORT": "auto"})


@pytest.mark.slow
def test_pictures_are_trained_scored_by_class_and_asked(place: Place, tmp_path: Path) -> None:
    """With the options for such data; the model and its ONNX answer about files in colour."""
    done = place.run("train", *FIELDS, "--onnx", "--json")
    assert done.returncode == 0, done.stderr
    result = TrainResult.model_validate_json(done.stdout)
    assert result.macro_f1 is not None
    assert result.macro_f1 > 0.9
    assert [result.class_recall, result.class_precision, result.class_f1].count(None) == 0
    assert len(result.class_f1 or ()) == 3
    artifact = Path(str(result.artifact))
    manifest = json.loads((artifact / "manifest.json").read_text())
    assert (manifest["input"]["shape"], manifest["input"]["classes"]) == ([3, 32, 40], 3)
    assert all(0 <= epoch["val_macro_f1"] <= 1 for epoch in manifest["history"])
    best = max(manifest["history"], key=lambda epoch: (epoch["val_macro_f1"], -epoch["val_loss"]))
    assert best["epoch"] == result.best_epoch
    evaluation = json.loads((artifact / "evaluation.json").read_text())
    assert [samples for samples, _, _ in evaluation["classes"]] == [20, 20, 20]
    report = (artifact / "report.html").read_text()
    assert "macro F1" in report
    assert ">F1<" in report
    noise = np.random.default_rng(1).integers(0, 120, (32, 40, 3), dtype=np.uint8)
    for label in range(3):
        coloured = noise.copy()
        coloured[..., label] += 80
        Image.fromarray(coloured.repeat(4, 0).repeat(4, 1)).save(tmp_path / f"{label}.png")
    images = [tmp_path / f"{label}.png" for label in range(3)]
    for model in (artifact, artifact / "model.onnx"):
        asked = place.run("predict", model, *images, "--json")
        assert asked.returncode == 0, asked.stderr
        assert [json.loads(line)["label"] for line in asked.stdout.splitlines()] == [0, 1, 2]


@pytest.mark.parametrize(("fields", "says"), [
    (("--set", "augmentation.erode_probability=0.5"), "erode_probability is 0.5, but images of flowers are in colour;"),
    (("--class-weights", "balanced", "--set", "validation_samples=299", "--batch-size", "1"),
     "class_weights is 'balanced', but class "),
    (("--recipe", "fast", "--set", "augmentation.hue=0.1"), "recipe 'fast' sets augmentation to another, but"),
])  # fmt: skip
def test_what_does_not_suit_the_pictures_is_one_sentence(place: Place, fields: tuple[str, ...], says: str) -> None:
    """Before anything is calibrated."""
    refused = place.run("train", "--dataset", "flowers", *fields)
    assert refused.returncode == 2
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
