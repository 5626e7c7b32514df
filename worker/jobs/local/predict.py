"""Predictions for `preflight predict`."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from preflight.errors import InvalidConfig
from training.artifacts import predict_child
from training.artifacts.predict_child import PredictRequest
from training.process.child import Child
from training.process.runner import iter_records
from training.system.requirements import require_onnx_packages, require_training_packages
from worker.config.settings import child_environment


class PictureReading(BaseModel):
    """A picture as the network read it."""

    image: str
    """Base64 of a PNG: the image that the network read."""
    ink: Literal["dark", "light"] | None = None
    """Ink compared with its paper; null: the picture was not read as a drawing."""
    box: tuple[int, int, int, int] | None = None
    """Left, top, right and bottom of the drawing, pixels of the upright picture; right and bottom lie outside."""
    background_spread: float | None = None
    """Share of the full scale between the darkest and the brightest paper."""
    uneven: bool | None = None
    """Whether the ink was found against a local background: uneven light, a shadow, lines or an edge."""
    drawings: int | None = None
    """Number of drawings side by side; several digits are read as one, whose answer is uncertain."""


class ImagePrediction(BaseModel):
    """Prediction for an image."""

    image: str
    """Path of the image, as given."""
    label: int
    name: str
    """Name of the label."""
    confidence: float
    """Probability of the label."""
    classes: list[str]
    """Name of every label."""
    probabilities: list[float]
    """Probability of every label."""
    uncertain: bool | None
    """Whether the confidence lies below the model's measured threshold, or the picture shows several digits; null: the
    model has no threshold."""
    reading: PictureReading


@dataclass(frozen=True, slots=True)
class UnusableImage:
    """An image that could not be used."""

    why: str


def predict_local(model: Path, images: Sequence[Path]) -> Iterator[ImagePrediction | UnusableImage]:
    """Yield the prediction of `model` for each image in turn, or why it could not be used.

    Raises:
        InvalidConfig: there is no such model.
        MissingPackage: a package for it is not installed.
    """
    if model.suffix == ".onnx":
        require_onnx_packages()
    else:
        require_training_packages()
    try:
        body = predict_child.REQUEST.dump_json(PredictRequest(model=model, images=tuple(images)))
    except ValueError as error:
        raise InvalidConfig("the name of a file is not UTF-8; rename it", field="image") from error
    with (
        tempfile.TemporaryDirectory(prefix="preflight-") as directory,
        Child(predict_child.MODULE, body, Path(directory), child_environment(), task="prediction") as child,
    ):
        for record in iter_records(child, lambda: None):
            if record.kind == "prediction":
                yield ImagePrediction.model_validate(record.payload)
            elif record.kind == "refused":
                yield UnusableImage(str(record.payload["message"]))
