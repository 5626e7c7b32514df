"""Prediction child: a trained model classifies pictures, which are untrusted."""

from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass as validated

from preflight.errors import InvalidConfig
from preflight.files.journal import JournalWriter
from preflight.pictures.reading import MOST_PIXELS
from preflight.recognizer.model import Model, as_pictured
from preflight.recognizer.onnx import open_exported
from training.artifacts.loading import find, load
from training.process.child_main import StopFlag, serve_request

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MODULE: Final = "training.artifacts.predict_child"


@validated(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class PredictRequest:
    """Model that is asked, and pictures to recognize."""

    model: Path
    """An artifact's directory, the model in it, or an exported `.onnx` file."""
    images: tuple[Path, ...]


REQUEST = TypeAdapter(PredictRequest)


def run(request: PredictRequest, journal: JournalWriter, should_stop: StopFlag) -> None:  # noqa: ARG001 - every child's signature
    """Record for each image, in turn, its `prediction`, or `refused` with the reason; then `done`."""
    model = open_model(request.model)
    for path in request.images:
        predict(model, path, journal)
    journal.write("done", {}, durable=True)


def open_model(path: Path) -> Model:
    """Return the model at `path`, as `PredictRequest` names it; raises `InvalidConfig` where there is none."""
    return open_exported(path) if path.suffix == ".onnx" else open_trained(path)


def predict(model: Model, path: Path, journal: JournalWriter) -> None:
    """Record the model's `prediction` for the picture at `path`, or `refused` with the reason."""
    try:
        reading = model.read(path, MOST_PIXELS)
    except InvalidConfig as error:
        journal.write("refused", {"message": error.message}, durable=True)
        return
    (probabilities,) = model.recognize(reading.image[None])
    label = int(probabilities.argmax())
    said = {
        "label": label, "name": model.names[label], "confidence": float(probabilities[label]),
        "classes": [*model.names], "probabilities": probabilities.tolist(),
        "uncertain": model.is_uncertain(float(probabilities[label]), reading),
        "reading": reading.described(),
    }  # fmt: skip
    journal.write("prediction", {"image": str(path), **said}, durable=True)


def open_trained(path: Path) -> Model:
    """Return the model of an artifact, computed by torch; raises `InvalidConfig` where there is none."""
    trained = find(path)
    shape, reads = as_pictured(path, trained.reads.shape), trained.reads
    import torch

    whole = load(trained)
    torch.set_num_threads(1)  # more would wait for each other over one small image

    def recognize(images: "npt.NDArray[np.uint8]") -> "npt.NDArray[np.float32]":
        with torch.inference_mode():
            found: npt.NDArray[np.float32] = whole(torch.from_numpy(images)).numpy()
        return found

    names = tuple(reads.name(label) for label in range(reads.classes))
    below = trained.confidence.uncertain_below if trained.confidence else None
    return Model(shape, reads.filled, names, reads.inverted, below, recognize)


def main() -> NoReturn:
    """Serve the request that the command line names."""
    serve_request(REQUEST, run)


if __name__ == "__main__":
    main()
