"""`evaluation.json`: what the page shows of the test set, bounded in size."""

import base64
import io
import json

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from preflight.pictures.png import MAX_SIDE, png
from training.artifacts.evaluation import MAX_CLASSES, MAX_ERRORS, evaluation_json
from training.artifacts.metrics import evaluation_metrics, macro_f1

MAX_BYTES = 2**21
"""As much the page reads."""


def random_images(samples: int, *shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(20).integers(0, 256, (samples, *shape), dtype=np.uint8)


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 5, 9), (3, 7, 4)], ids=str)
def test_a_picture_has_the_pixels_of_its_sample(shape: tuple[int, int, int]) -> None:
    """Read back by PIL: in colour with three channels, else the first one."""
    (pixels,) = random_images(1, *shape)
    shown = np.asarray(Image.open(io.BytesIO(png(pixels))))
    assert (shown == (pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0])).all()


def test_a_large_picture_is_thinned() -> None:
    """Sides keep their proportion, none is longer than the bound."""
    (pixels,) = random_images(1, 3, 224, 112)
    shown = np.asarray(Image.open(io.BytesIO(png(pixels))))
    assert shown.shape == (56, 28, 3)
    assert max(shown.shape) <= MAX_SIDE
    assert (shown == pixels.transpose(1, 2, 0)[::4, ::4]).all()


@pytest.mark.parametrize(("classes", "shape"), [(10, (1, 28, 28)), (256, (3, 224, 224))], ids=str)
def test_errors_are_the_most_confident_ones_and_the_file_is_small(classes: int, shape: tuple[int, int, int]) -> None:
    """Noise in every picture, which no compression makes smaller, and the most classes."""
    random = np.random.default_rng(20)
    probabilities = random.dirichlet(np.ones(classes), 40).astype(np.float32)
    labels = random.integers(0, classes, 40).astype(np.uint8)
    images = random_images(40, *shape)
    content = evaluation_json(probabilities, labels, images)
    found, written = evaluation_metrics(probabilities, labels), json.loads(content)
    assert len(content) <= MAX_BYTES
    assert (written["samples"], written["right"]) == (40, found.right)
    assert written["macro_f1"] == pytest.approx(macro_f1(found.classes))
    assert written["classes"] == [[one.samples, one.predicted, one.right] for one in found.classes]
    assert written["confusion"] == ([list(row) for row in found.confusion] if classes <= MAX_CLASSES else None)
    assert [error["sample"] for error in written["errors"]] == [one.sample for one in found.mistakes[:MAX_ERRORS]]
    for error in written["errors"]:
        assert base64.b64decode(error["png"]) == png(images[error["sample"]])
        assert error["confidence"] == pytest.approx(probabilities[error["sample"], error["predicted"]])
        assert error["truth_confidence"] == pytest.approx(probabilities[error["sample"], error["truth"]])
