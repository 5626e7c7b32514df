"""Photographs of MNIST's digits are read as the digits themselves; which answers are wrong, the model is unsure of."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.files.photographs import photograph

from preflight.pictures.reading import MOST_PIXELS
from preflight.recognizer.model import Model
from training.artifacts.confidence import LEAST_SAMPLES
from training.artifacts.predict_child import open_model
from training.data.builtin.catalog import MNIST
from training.data.datasets import LabeledImages

pytestmark = pytest.mark.covers_children

RECIPES = ["fast", pytest.param("balanced", marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
COUNTS = {"fast": 20, "balanced": 200}
"""Photographs."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A model of a recipe, and MNIST's test samples."""

    recipe: str
    model: Model
    samples: LabeledImages
    result: dict[str, object]

    def answers(self, path: Path, picture: bytes) -> tuple[int, float]:
        path.write_bytes(picture)
        probabilities = self.model.recognize(self.model.read(path, MOST_PIXELS).image[None])[0]
        return int(probabilities.argmax()), float(probabilities.max())


@pytest.fixture(scope="module", params=RECIPES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, mnist_dir: Path) -> Trained:
    root, recipe = tmp_path_factory.mktemp("photographs"), str(request.param)
    environment = {
        **os.environ, "PREFLIGHT_DATA_DIR": str(mnist_dir), "PREFLIGHT_CACHE_DIR": str(root / "cache"),
        "PREFLIGHT_STATE_DIR": str(root / "state"), "PREFLIGHT_ARTIFACT_DIR": str(root / "artifacts"),
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "worker.cli", "train", "--dataset", "mnist", "--recipe", recipe, "--json",
               "--no-calibrate", "--set", "plan.threads=1"]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    test = MNIST.load(mnist_dir, download=False).test
    return Trained(recipe, open_model(Path(result["artifact"])), test, result)


@pytest.mark.slow
def test_photographs_are_read(trained: Trained, tmp_path: Path) -> None:
    """At least 95 % of them; of the others, at least 80 % of the answers are uncertain."""
    wrong, count = [], COUNTS[trained.recipe]
    below = trained.model.uncertain_below
    assert below is not None
    for seed in range(count):
        sample = int(np.random.default_rng(1000 + seed).integers(len(trained.samples.labels)))
        picture = photograph(trained.samples.images[sample, 0], seed)
        label, confidence = trained.answers(tmp_path / "photograph.jpg", picture)
        if label != trained.samples.labels[sample]:
            wrong.append(confidence)
    assert len(wrong) <= 0.05 * count, wrong
    assert sum(confidence < below for confidence in wrong) >= 0.8 * len(wrong), wrong


@pytest.mark.slow
def test_the_confidence_of_a_result(trained: Trained) -> None:
    """Recipes hold nothing out; few answers are uncertain, and hardly any of the others is wrong."""
    found = trained.result["confidence"]
    assert isinstance(found, dict)
    assert found["measured_on"] == "training"
    assert found["samples"] > LEAST_SAMPLES
    assert 0.1 < found["temperature"] < 1  # label smoothing leaves a model less sure than it is right
    assert found["uncertain_share"] <= 0.1
    assert found["error_above"] < 0.002
    assert found["uncertain_below"] == pytest.approx(trained.model.uncertain_below, abs=1e-4)


@pytest.mark.slow
def test_plain_pictures_lose_nothing(trained: Trained, tmp_path: Path) -> None:
    """As PNG files, MNIST's test images are recognized as often as the images themselves, up to 0.05 points."""
    labels, path = trained.samples.labels, tmp_path / "digit.png"

    def accuracy(images: npt.NDArray[np.uint8]) -> float:
        return float(np.mean([trained.model.recognize(image[None]).argmax() for image in images] == labels))

    def read(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        Image.fromarray(image[0]).save(path, compress_level=0)
        return trained.model.read(path, MOST_PIXELS).image

    pictured = np.stack([read(image) for image in trained.samples.images])
    assert accuracy(pictured) > accuracy(trained.samples.images) - 0.0005
